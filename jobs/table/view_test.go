package table_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// A handler gets the row as the claim has left it, also where an expression uses a column that the
// claim has written.
func TestNothingIsStale(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	got := make(chan example, 1)
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error {
		got <- j.Record
		return nil
	}
	id := s.add(`(state, failure_message, execution_logs, finished_at, worker_hostname, started_at, repository_id)
		VALUES ('errored', 'old', ARRAY['{"old": 1}'::json], now() - interval '1 hour', 'old/1', now() - interval '2 hours', 7)`)
	s.run(nil)
	e := <-got
	if e.ID != int(id) || e.State != "PROCESSING" || e.Started == nil || time.Since(*e.Started) > 10*time.Minute || e.Hostname != "here" || e.Logs != nil || e.Failure != nil || e.Repository != "repo 7" {
		t.Errorf("the record is %+v", e)
	}
}

// A row that the view hides waits, and then runs. A row has a failure if Scan refuses it, or if the
// view fails on it or shows it twice. The other rows run.
func TestRowsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `DROP VIEW example_jobs_with_repository_name`)
	s.d.Exec(t, `CREATE VIEW example_jobs_with_repository_name AS
		SELECT ej.*, r.name || CASE WHEN ej.repository_id = 3 THEN (1 / (ej.repository_id - 3))::text ELSE '' END AS repository_name
		FROM example_jobs AS ej JOIN repo AS r ON r.id = ej.repository_id JOIN generate_series(1, 2) AS n ON n = 1 OR ej.repository_id = 4
		WHERE ej.repository_id <> 2`)
	s.o.MaxNumRetries = 2
	s.o.Scan = func(row table.Row) (e example, err error) {
		switch e, err = scan(row); {
		case err != nil:
		case e.Repository == "repo 5":
			return e, errRefused
		case e.Repository == "repo 6":
			panic("boom")
		case e.Repository == "repo 7":
			return e, row.Scan(&e.ID)
		case e.Repository == "repo 8":
			return e, errors.Join(row.Scan(&e.ID, &e.State, &e.Started, &e.Hostname, &e.Logs, &e.Failure, new(int)))
		}
		return e, err
	}
	s.h.Handle = func(_ context.Context, j *table.Job[example]) error { s.note("%s", j.Record.Repository); return nil }
	want := map[string]string{"2": "queued 0 example_jobs_with_repository_name does not show the row", "3": "failed 2 division by zero", "4": "failed 2 more than once",
		"5": "failed 2 refused", "6": "failed 2 boom", "7": "failed 2 takes 1, there are 7", "8": `failed 2 converting driver.Value type string ("repo 8")`}
	hid := make(chan []int64, 100)
	// A row that was queued an hour ago is hidden for an hour.
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id, queued_at) SELECT i, now() - CASE i WHEN 2 THEN interval '1 hour' ELSE interval '0' END FROM generate_series(1, 20) AS i`)
	w := s.run(func(o *table.WorkerOptions) {
		o.NumHandlers = 30
		o.Observers = []observe.Observer{observe.On(func(e observe.RowsHidden) { ids := e.IDs; hid <- ids })}
	})
	s.until("all to end", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state IN ('completed', 'failed') OR process_after > now()`) == "20"
	})
	for repository := range 21 {
		if repository == 0 {
			continue
		}
		got := s.text(`SELECT state || ' ' || num_failures || ' ' || coalesce(failure_message, '-') FROM example_jobs WHERE repository_id = $1`, repository)
		expect, odd := want[fmt.Sprint(repository)]
		if !odd {
			expect = "completed 0 -"
		}
		if !contains(got, expect) {
			t.Errorf("the row of repository %d: %s, want %s", repository, got, expect)
		}
	}
	if n := s.notes(); len(n) != 13 {
		t.Errorf("these ran: %q", n)
	}
	if ids := <-hid; len(ids) != 1 || s.text(`SELECT repository_id::text FROM example_jobs WHERE id = $1`, ids[0]) != "2" {
		t.Errorf("hidden: %v", ids)
	}
	s.want("what is hidden waits for", "true", `SELECT (process_after - now() BETWEEN interval '50 minutes' AND interval '1 hour')::text FROM example_jobs WHERE repository_id = 2`)
	s.d.Exec(t, `UPDATE example_jobs SET process_after = NULL, repository_id = 1 WHERE repository_id = 2`)
	s.until("what was hidden to run", func() bool { return len(s.notes()) == 14 })
	s.until("its slot", func() bool { return w.Status().Running == 0 })
}

// Scan may delay a job, as a handler may.
func TestScanThatReturnsRequeueAfter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.Scan = func(row table.Row) (e example, err error) {
		e, err = scan(row)
		return e, errors.Join(err, table.RequeueAfter(time.Hour))
	}
	w := s.run(nil)
	id := s.add("")
	s.until("it to be put off", func() bool {
		return s.text(`SELECT (process_after IS NOT NULL)::text FROM example_jobs WHERE id = $1`, id) == "true"
	})
	s.want("the row", "queued 0 60", `SELECT state || ' ' || num_failures || ' ' || round(extract(epoch FROM process_after - now()) / 60) FROM example_jobs WHERE id = $1`, id)
	s.until("its slot", func() bool { return w.Status().Running == 0 })
}

// A hidden row waits for as long again as it has waited, ten seconds at least and an hour at most.
func TestHiddenForLong(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.add(`(repository_id, queued_at) VALUES (99, now() - interval '10 minutes')`)
	ages := s.add(`(repository_id, queued_at) VALUES (99, now() - interval '10 days')`)
	s.add(`(repository_id, queued_at) VALUES (99, 'infinity'), (99, '-infinity'), (99, '20000-01-01')`)
	s.run(nil)
	s.until("all to be hidden", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE process_after > now()`) == "5"
	})
	s.want("the pauses", "10 60", `SELECT string_agg(round(extract(epoch FROM process_after - now()) / 60)::text, ' ' ORDER BY id) FROM example_jobs WHERE id IN ($1, $2)`, id, ages)
	s.until("pauses of ten seconds", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE queued_at > now() AND process_after BETWEEN now() AND now() + interval '11 seconds'`) == "2"
	})
}

// While the view cannot be read at all, no job has a failure for this reason.
func TestUnreadableView(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w := s.run(nil)
	s.until("the worker to run", func() bool { return w.Status().State == observe.StateRunning })
	s.d.Exec(t, `ALTER VIEW example_jobs_with_repository_name RENAME TO away`)
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT i FROM generate_series(1, 5) AS i`)
	s.until("the trouble to show", func() bool {
		err := w.Status().ClaimError
		return err != nil && strings.Contains(err.Error(), "example_jobs_with_repository_name")
	})
	s.d.Exec(t, `ALTER VIEW away RENAME TO example_jobs_with_repository_name`)
	s.until("all to complete", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state = 'completed' AND num_failures + num_resets = 0`) == "5"
	})
	s.until("the trouble to be over", func() bool { return w.Status().ClaimError == nil })
}

// A row that the table does not accept as completed has failed. The other rows complete.
func TestRowThatTheTableRefuses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `ALTER TABLE example_jobs ADD CHECK (repository_id <> 3 OR state <> 'completed')`)
	s.d.Exec(t, `ALTER TABLE example_jobs ADD CHECK (repository_id <> 4 OR state NOT IN ('completed', 'failed', 'errored'))`)
	s.o.MaxNumResets, s.o.StalledMaxAge = 1, 600*time.Millisecond
	s.d.Exec(t, `INSERT INTO example_jobs (repository_id) SELECT i FROM generate_series(1, 10) AS i`)
	w := s.run(func(o *table.WorkerOptions) { o.NumHandlers = 20 })
	s.until("the others to end", func() bool {
		return s.text(`SELECT count(*)::text FROM example_jobs WHERE state IN ('completed', 'failed')`) == "9"
	})
	s.want("what is refused", "failed", `SELECT state FROM example_jobs WHERE repository_id = 3 AND failure_message LIKE '%check constraint%'`)
	s.until("the other one to be lost, and reset", func() bool {
		return s.text(`SELECT num_resets::text FROM example_jobs WHERE repository_id = 4`) == "1"
	})
	if w.Status().Lost == 0 {
		t.Errorf("the status is %+v", w.Status())
	}
}
