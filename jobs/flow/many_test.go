package flow_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
)

type partJob struct{ Run, Part int }

func (partJob) Kind() string { return "part" }

type joinJob struct{ Run int }

func (joinJob) Kind() string { return "join" }

// runsVariable is the environment variable with the number of runs of TestManyRuns.
const runsVariable = "FLOW_RUNS"

// Eight workers run flows of eight parallel steps and a join, while their sessions are killed and
// the server crashes once. Each step ends once, each join begins after its eight steps, the
// counters reach zero, and no deadlock occurs.
//
//	FLOW_RUNS=2000 go test -run TestManyRuns -v ./jobs/flow
func TestManyRuns(t *testing.T) {
	t.Parallel()
	runs, err := strconv.Atoi(os.Getenv(runsVariable))
	if err != nil {
		runs = tier.Amount(16, 300)
	}
	server := pgtest.OwnServer(t, map[string]string{"fsync": "on"})
	db, err := sql.Open("pgx", server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(50)
	if err := migrations.ApplyJobs(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	client := jobs.NewClient(db)
	s := &stage{Client: flow.NewClient(client), Handlers: jobs.NewHandlers(), jobs: client, t: t, d: &pgtest.Database{URL: server.URL(""), DB: db}}
	f := flow.New[int]("fan")
	often := flow.Enqueue(jobs.MaxResets(1000)) // the slower the machine, the more connections are lost
	var parts []flow.Dependency
	for i := range 8 {
		parts = append(parts, flow.Add[flow.None](f, fmt.Sprint("part ", i), func(n int) partJob { return partJob{n, i} }, often))
	}
	flow.Add[flow.None](f, "join", func(n int) joinJob { return joinJob{n} }, flow.After(parts...), often)
	var calls atomic.Int64
	s.d.Exec(t, `CREATE TABLE parts (run int, part int)`)
	s.d.Exec(t, `CREATE TABLE joins (run int, parts int)`)
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[partJob]) error {
		calls.Add(1)
		_, err := tx.ExecContext(ctx, `INSERT INTO parts VALUES ($1, $2)`, j.Args.Run, j.Args.Part)
		return err
	})
	jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[joinJob]) error {
		calls.Add(1)
		_, err := tx.ExecContext(ctx, `INSERT INTO joins SELECT $1, count(*) FROM parts WHERE run = $1`, j.Args.Run)
		return err
	})
	ids := make([]int64, runs)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		started, err := f.Start(t.Context(), s.Client, tx, i)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = started.Run
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	workers := tier.Amount(4, 8)
	for range workers {
		s.work(jobs.WithQueue("default", 8), jobs.WithHeartbeatTimeout(10*time.Second))
	}
	s.until("the workers to have started", func() bool { return s.count(`SELECT count(*) FROM jobs_workers`) == workers })
	killed, crashed := 0, false
	for deadline := time.Now().Add(max(2*time.Minute, time.Duration(runs)*200*time.Millisecond)); ; time.Sleep(20 * time.Millisecond) {
		var done, n int
		err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM jobs_flow_runs WHERE state = 'completed'`).Scan(&done)
		if err == nil && done == runs {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d runs %d have completed, %v", runs, done, err)
		}
		switch {
		case err == nil && !crashed && done > runs/2:
			crashed = true
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		case err == nil && rand.IntN(4) == 0:
			if err := db.QueryRowContext(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.1`).Scan(&n); err == nil {
				killed += n
			}
		}
	}
	took := time.Since(begin)
	db.SetMaxIdleConns(-1) // some belong to sessions that were killed
	for what, query := range map[string]string{
		"parts that did not come once": `SELECT count(*) FROM (SELECT FROM parts GROUP BY run, part HAVING count(*) <> 1) AS x`,
		"parts":                        fmt.Sprintf(`SELECT count(*) - %d FROM parts`, 8*runs),
		"joins that did not come once, after their parts": `SELECT count(*) FROM joins WHERE parts <> 8 OR run IN (SELECT run FROM joins GROUP BY run HAVING count(*) > 1)`,
		"joins":                          fmt.Sprintf(`SELECT count(*) - %d FROM joins`, runs),
		"steps whose counters are not 0": `SELECT count(*) FROM jobs_flow_steps WHERE need <> 0 OR may_fail <> 0 OR state <> 'completed'`,
		"runs whose counters are not 0":  `SELECT count(*) FROM jobs_flow_runs WHERE unfinished <> 0 OR bad <> 0 OR state <> 'completed'`,
		"jobs that are no step's":        `SELECT count(*) FROM jobs_history WHERE id NOT IN (SELECT job_id FROM jobs_flow_steps)`,
		"jobs beside one for each step":  fmt.Sprintf(`SELECT count(*) - %d FROM jobs_history WHERE state = 'completed'`, 9*runs),
		"jobs that are left":             `SELECT count(*) FROM jobs`,
		"deadlocks, since the crash":     `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`,
	} {
		if n := s.count(query); n != 0 {
			t.Errorf("%s: %d", what, n)
		}
	}
	log, err := os.ReadFile(server.LogFile())
	if n := strings.Count(string(log), "deadlock detected"); err != nil || n > 0 {
		t.Errorf("the server's log has %d deadlocks, %v", n, err)
	}
	t.Logf("%d runs, %d steps in %v (%.0f steps/s): %d calls of handlers, %d sessions killed, the server crashed once: %t", runs, 9*runs, took.Round(time.Millisecond),
		float64(9*runs)/took.Seconds(), calls.Load(), killed, crashed)
}
