package table_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

var crashRows = flag.Int("table.rows", 2_000, "rows of TestProcessesAreKilledAndSuspended")

// Worker processes are killed, and others are suspended until another process has their rows. Each
// row is completed once, by the process that had claimed it.
func TestProcessesAreKilledAndSuspended(t *testing.T) {
	t.Parallel()
	const processes = 4
	s := newStage(t)
	if _, err := s.d.OpenPQ(t).ExecContext(t.Context(), records); err != nil {
		t.Fatal(err)
	}
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 + i % 20 FROM generate_series(1, $1::int) AS i`, *crashRows)
	begin := time.Now()
	started := 0
	next := func() *process {
		started++
		return s.startProcess(role{Name: fmt.Sprint("process-", started), Handlers: 20, Stalled: 600 * time.Millisecond, Work: 20 * time.Millisecond})
	}
	var running [processes]*process
	for i := range running {
		running[i] = next()
	}
	kills, sleeps := 0, 0
	refused := func() bool { return s.text(`SELECT EXISTS (SELECT FROM refused)::text`) == "true" }
	open := func() bool {
		return s.text(`SELECT EXISTS (SELECT FROM example_jobs WHERE state <> 'completed')::text`) == "true"
	}
	// A suspended process may have ended its rows just before, or be killed before it ends them.
	for open() || kills < 3 || sleeps < 3 || sleeps < 20 && !refused() {
		if time.Since(begin) > 20*time.Minute {
			t.Fatal("it does not end")
		}
		if !open() { // so that the processes have rows to lose
			s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT 1 + i % 20 FROM generate_series(1, 200) AS i`)
		}
		i := rand.IntN(processes)
		s.until(running[i].name+" to have rows", func() bool { return s.holds(running[i]) || !open() })
		if kills <= sleeps {
			kills++
			running[i].Kill()
			running[i] = next()
		} else {
			sleeps++
			running[i].signal(t, syscall.SIGSTOP)
			// Wait until other processes have taken its rows.
			s.until("the rows of "+running[i].name+" to be another's", func() bool { return !s.holds(running[i]) })
			running[i].signal(t, syscall.SIGCONT)
		}
		time.Sleep(rand.N(300 * time.Millisecond)) // a fault now and then, no synchronisation
	}
	took := time.Since(begin)
	for _, p := range running {
		s.until(p.name+" to run", func() bool {
			return s.text(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1)::text`, p.name) == "true"
		})
		p.signal(t, syscall.SIGTERM)
	}
	for _, p := range running {
		<-p.Done()
		if !p.State().Success() {
			t.Errorf("%s ended with %v", p.name, p.State())
		}
	}
	s.want("rows that are not completed", "0", `SELECT count(*)::text FROM example_jobs WHERE state <> 'completed'`)
	s.want("rows without an end, or with two", "0", `
SELECT count(*)::text FROM (SELECT j.id FROM example_jobs AS j LEFT JOIN finished AS f ON f.job = j.id GROUP BY j.id HAVING count(f.job) <> 1) AS x`)
	s.want("rows that were finished by one that had not claimed them", "0", `SELECT count(*)::text FROM finished WHERE claimed_by <> finished_by`)
	s.want("rows that were finished under another claim than the last", "0", `
SELECT count(*)::text FROM finished AS f JOIN example_jobs AS j ON j.id = f.job WHERE j.started_at <> f.claimed_at`)
	if !refused() {
		t.Error("no zombie was refused")
	}
	rows := s.text(`SELECT count(*)::text FROM example_jobs`)
	t.Logf("%s rows in %v: %.0f jobs/s; %d processes killed, %d stopped and continued; %s runs, of which again %s, of %s rows; %s zombies refused",
		rows, took.Round(time.Millisecond), mustFloat(rows)/took.Seconds(), kills, sleeps,
		s.text(`SELECT count(*)::text FROM runs`), s.text(`SELECT (count(*) - count(DISTINCT job))::text FROM runs`),
		s.text(`SELECT count(*)::text FROM (SELECT job FROM runs GROUP BY job HAVING count(*) > 1) AS x`), s.text(`SELECT count(*)::text FROM refused`))
}

func mustFloat(text string) (f float64) {
	_, _ = fmt.Sscan(text, &f)
	return f
}
