package table_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// abandoned are the columns of a row that a worker has claimed and left.
const abandoned = `(state, worker_hostname, started_at, last_heartbeat_at, num_resets, cancel)
	SELECT 'processing', 'gone/1', now() - interval '1 hour', now() - interval '1 hour', `

const tooOften = "each worker that ran this job was lost, too often"

// A row without heartbeats runs again until it was reset too often. A cancelled row does not run
// again.
func TestReset(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		row      string
		reported table.State
		resets   int
		message  string
		most     int
	}{
		"the first time":    {abandoned + `0, false`, table.StateQueued, 1, "-", 2},
		"the last time":     {abandoned + `1, false`, table.StateQueued, 2, "-", 2},
		"too often":         {abandoned + `2, false`, table.StateFailed, 2, tooOften, 2},
		"by default":        {abandoned + `4, false`, table.StateQueued, 5, "-", 0},
		"default too many":  {abandoned + `5, false`, table.StateFailed, 5, tooOften, 0},
		"never":             {abandoned + `0, false`, table.StateFailed, 0, tooOften, -1},
		"canceled":          {abandoned + `0, true`, table.StateCanceled, 0, "-", 2},
		"canceled too late": {abandoned + `2, true`, table.StateCanceled, 2, "-", 2},
		"never a heartbeat": {`(state, worker_hostname) SELECT 'processing', 'gone/1'`, table.StateQueued, 1, "-", 2},
		"a heartbeat ahead": {`(state, last_heartbeat_at) SELECT 'processing', clock_timestamp() + interval '1 day'`, table.StateQueued, 1, "-", 2},
		"an odd heartbeat":  {`(state, last_heartbeat_at) SELECT 'processing', '-infinity'`, table.StateQueued, 1, "-", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.o.MaxNumResets = c.most
			s.o.StalledMaxAge = 2 * time.Second
			resets := make(chan observe.RowReset, 5)
			w := s.run(func(o *table.WorkerOptions) {
				o.Observers = []observe.Observer{observe.On(func(r observe.RowReset) { resets <- r })}
			})
			id := s.add(c.row)
			s.until("the reset to be reported", func() bool { return w.Status().Reset >= 1 })
			if r := <-resets; r.ID != id || r.State != string(c.reported) || r.Age < 0 {
				t.Errorf("reported: %+v", r)
			}
			s.want("the row", fmt.Sprint(c.resets, " ", c.message), `SELECT num_resets || ' ' || coalesce(failure_message, '-') FROM example_jobs WHERE id = $1`, id)
			if c.reported == table.StateQueued && c.resets < 5 { // the fifth time it is due in up to 16 s
				c.reported = table.StateCompleted
			}
			if c.reported != table.StateQueued {
				s.becomes(id, c.reported)
			}
		})
	}
}

// Rows of partitions and of inheriting tables are rows of the table.
func TestPartitionsAndChildTables(t *testing.T) {
	t.Parallel()
	for name, ddl := range map[string]string{
		"partitions": `ALTER TABLE example_jobs RENAME TO whole;
			CREATE TABLE example_jobs (LIKE whole INCLUDING DEFAULTS, PRIMARY KEY (id)) PARTITION BY HASH (id);
			CREATE TABLE a PARTITION OF example_jobs FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE b PARTITION OF example_jobs FOR VALUES WITH (MODULUS 2, REMAINDER 1);
			CREATE VIEW shown AS SELECT ej.*, r.name AS repository_name FROM example_jobs AS ej JOIN repo AS r ON r.id = ej.repository_id`,
		"inheritance": `CREATE TABLE a () INHERITS (example_jobs);
			CREATE VIEW shown AS SELECT * FROM example_jobs_with_repository_name;
			CREATE FUNCTION spread() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id % 2 = 0 THEN INSERT INTO a SELECT NEW.*; RETURN NULL; END IF; RETURN NEW; END $$;
			CREATE TRIGGER spread BEFORE INSERT ON example_jobs FOR EACH ROW EXECUTE FUNCTION spread()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.script(ddl)
			s.o.ViewName, s.o.StalledMaxAge = "shown j", 3*time.Second
			s.d.Exec(t, `INSERT INTO example_jobs (repository_id, state) SELECT i, CASE WHEN i > 10 THEN 'processing' ELSE 'queued' END FROM generate_series(1, 20) AS i`)
			s.run(nil)
			s.until("all to complete", func() bool {
				return s.text(`SELECT count(*) || ' ' || coalesce(sum(num_resets), 0) FROM example_jobs WHERE state = 'completed'`) == "20 10"
			})
			s.want("those of a part", "true", `SELECT (count(*) BETWEEN 1 AND 19)::text FROM a WHERE state = 'completed'`)
		})
	}
}

// The failure message of a job that was lost too often is the user's, if set.
func TestResetFailureMessage(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.MaxNumResets, s.o.ResetFailureMessage, s.o.StalledMaxAge = -1, `it's gone \ again`, 200*time.Millisecond
	s.run(nil)
	id := s.add(abandoned + `0, false`)
	s.becomes(id, table.StateFailed)
	s.want("the message", `it's gone \ again`, `SELECT failure_message FROM example_jobs WHERE id = $1`, id)
}

// After an outage all heartbeats are old. No worker resets the rows of live workers for this
// reason. The reset of a row whose worker is gone proves that a worker has checked.
func TestOldHeartbeatsOfTheLiving(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	s.h.Handle = func(ctx context.Context, _ *table.Job[example]) error {
		s.note("runs")
		<-release
		return ctx.Err()
	}
	s.o.StalledMaxAge = 8 * time.Second
	living := s.run(nil)
	id := s.add("")
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	s.run(nil)
	gone := s.add(abandoned + `0, false`)
	s.until("a row to be reset", func() bool { // as at the end of an outage, until then
		s.d.Exec(t, `UPDATE example_jobs SET last_heartbeat_at = clock_timestamp() - interval '1 hour' WHERE id = $1`, id)
		return s.text(`SELECT num_resets FROM example_jobs WHERE id = $1`, gone) == "1"
	})
	close(release)
	s.becomes(id, table.StateCompleted)
	s.want("resets", "0", `SELECT num_resets::text FROM example_jobs WHERE id = $1`, id)
	if n := living.Status().Lost; n > 0 {
		t.Errorf("%d runs were lost", n)
	}
}

// A row that has failed is due again after RetryAfter, also if it failed before the server's
// clock was set back.
func TestRetryAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.RetryAfter = time.Hour
	ahead, recent := s.add(`(state, finished_at) SELECT 'errored', clock_timestamp() + interval '1 day'`), s.add(`(state, finished_at) SELECT 'errored', clock_timestamp()`)
	s.run(nil)
	s.becomes(ahead, table.StateCompleted)
	if got := s.state(recent); got != string(table.StateErrored) {
		t.Errorf("the one that has just failed is %s", got)
	}
}
