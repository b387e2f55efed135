package jobs_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
)

// Connections die before or after the server has got a statement of the worker, and the server does
// not notice. Each job runs, no failure is counted, and effects in transactions happen once.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	statements := map[string]string{
		"claim": "FOR UPDATE SKIP LOCKED) AS j", "complete": "'completed' FROM gone", "settle": "mine AS MATERIALIZED",
		"start": "started_at = clock_timestamp(), unique_key", "look": "AS j WHERE j.state = 'running' AND j.queue",
		"commit": "commit\x00", "begin": "begin", "effect": "INSERT INTO effects",
	}
	for name, text := range statements {
		for when, swallow := range map[string]func(*pgtest.Hole, string){"before": (*pgtest.Hole).Swallow, "after": (*pgtest.Hole).SwallowAnswer} {
			t.Run(name+" "+when, func(t *testing.T) {
				if when == "after" && name != "commit" && name != "settle" {
					tier.Long(t, "TestSilentConnections, which loses the answers to COMMIT and settle")
				}
				t.Parallel()
				s := newStage(t)
				s.d.Exec(t, `CREATE TABLE effects (n int)`)
				jobs.RegisterTx(s.Handlers, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[task]) error {
					_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.Args.N)
					return err
				})
				jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[other]) error {
					if j.Attempt == 1 {
						return jobs.Snooze(0)
					}
					return nil
				})
				db, hole := s.openHole(t)
				db.SetMaxIdleConns(20)
				var ids []int64
				for n := range 10 {
					ids = append(ids, s.add(task{n}), s.add(other{}))
				}
				swallow(hole, text)
				s.runOn(db, jobs.WithPrefetch(4), jobs.WithQueue("default", 3))
				for _, id := range ids {
					if i := s.ended(id); i.State != jobs.StateCompleted || i.Failures > 0 {
						t.Errorf("job %d is %s with %d failures, %+v", id, i.State, i.Failures, i.Attempts)
					}
				}
				var effects string
				if err := s.d.DB.QueryRow(`SELECT count(*) || ' ' || count(DISTINCT n) FROM effects`).Scan(&effects); err != nil || effects != "10 10" {
					t.Errorf("effects: %s, %v", effects, err)
				}
				if name != "look" && name != "begin" && hole.Fallen() == 0 {
					t.Error("no connection has died")
				}
			})
		}
	}
}

// A connection falls silent around a handler that has no time limit. The worker gives up its own
// statements there, and the job runs.
func TestSilenceAroundAHandler(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"begin": "begin", "complete": "'completed' FROM gone", "commit": "commit\x00"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.RegisterTx(s.Handlers, func(context.Context, *sql.Tx, *jobs.Job[task]) error { return nil }, jobs.Timeout(0))
			db, hole := s.openHole(t)
			hole.GivesUp = false
			hole.Swallow(text)
			id := s.add(task{})
			s.runOn(db)
			if i := s.ended(id); i.State != jobs.StateCompleted || i.Failures > 0 || hole.Fallen() != 1 {
				t.Errorf("the job is %s with %d failures; %d connections fell silent", i.State, i.Failures, hole.Fallen())
			}
		})
	}
}

type other struct{}

func (other) Kind() string { return "other" }

// A worker adopts jobs whose claim got no answer: they run.
func TestAdoption(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	db, hole := s.openHole(t)
	var ids []int64
	for n := range 5 {
		ids = append(ids, s.add(task{n}))
	}
	hole.SwallowAnswer("FOR UPDATE SKIP LOCKED) AS j")
	s.runOn(db)
	for _, id := range ids {
		if i := s.ended(id); i.State != jobs.StateCompleted || i.Attempt != 1 || i.Resets != 0 {
			t.Errorf("job %d is %s after %d attempts and %d resets", id, i.State, i.Attempt, i.Resets)
		}
	}
	if hole.Fallen() == 0 {
		t.Error("no answer was lost")
	}
}

// openHole opens a pool whose connections can die unnoticed by the server. Each statement is sent
// and executed in one message. Otherwise the lost answer could be the answer of its preparation.
func (s *stage) openHole(t *testing.T) (*sql.DB, *pgtest.Hole) {
	t.Helper()
	db, hole := s.d.InMode(pgx.QueryExecModeExec).OpenHole(t)
	hole.GivesUp = true
	db.SetMaxIdleConns(20)
	return db, hole
}
