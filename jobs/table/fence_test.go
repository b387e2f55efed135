package table_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/observe"
)

// thefts give a running row to another claim, in one part of the fence each.
var thefts = map[string]string{
	"another worker":             `UPDATE example_jobs SET worker_hostname = 'elsewhere/1' WHERE id = $1`,
	"a later claim of the same":  `UPDATE example_jobs SET started_at = started_at + interval '1 microsecond' WHERE id = $1`,
	"queued again":               `UPDATE example_jobs SET state = 'queued', started_at = NULL, process_after = 'infinity' WHERE id = $1`,
	"claimed again by another":   `UPDATE example_jobs SET worker_hostname = 'elsewhere/1', started_at = clock_timestamp() WHERE id = $1`,
	"an operator has removed it": `DELETE FROM example_jobs WHERE id = $1`,
}

// A run whose row another claim has cannot change the row. It cannot end the row, write its
// heartbeat or log, or complete it in a transaction. Its context ends.
func TestZombie(t *testing.T) {
	t.Parallel()
	for name, theft := range thefts {
		for how, returned := range map[string]error{"completes": nil, "fails": errRefused, "fails for good": table.NonRetryable(errRefused), "queues": table.RequeueAfter(0)} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				release := make(chan struct{})
				s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
					s.note("runs")
					<-release
					<-ctx.Done()
					s.note("%v", context.Cause(ctx))
					_, err := j.Log(context.WithoutCancel(ctx), "late")
					s.note("log %t", errors.Is(err, table.ErrClaimLost))
					err = j.UpdateLog(context.WithoutCancel(ctx), 1, "late")
					s.note("log %t", errors.Is(err, table.ErrClaimLost))
					tx, err := s.d.DB.BeginTx(context.WithoutCancel(ctx), nil)
					if err != nil {
						return err
					}
					s.note("complete %t", errors.Is(j.CompleteTx(context.WithoutCancel(ctx), tx), table.ErrClaimLost))
					return errors.Join(returned, tx.Commit())
				}
				s.o.StalledMaxAge = time.Minute // no other worker resets it
				w := s.run(func(o *table.WorkerOptions) {
					o.Observers = []observe.Observer{observe.On(func(h observe.JobLost) { s.note("lost %d", h.ID) }), observe.On(func(d observe.JobDone) { s.note("done %+v", d) })}
				})
				id := s.add("")
				s.until("the job to run", func() bool { return len(s.notes()) == 1 })
				s.d.Exec(t, theft, id)
				row := `SELECT coalesce((SELECT (to_jsonb(j) - 'last_heartbeat_at')::text FROM example_jobs AS j WHERE id = $1), '')`
				before := s.text(row, id)
				close(release)
				s.until("the run to be lost, or what it does to be reported", func() bool { return w.Status().Lost == 1 || len(s.notes()) > 5 })
				s.want("the row", before, row, id)
				s.until("its loss to be reported", func() bool { return len(s.notes()) > 5 })
				want := fmt.Sprintf("%q", []string{"runs", table.ErrClaimLost.Error(), "log true", "log true", "complete true", fmt.Sprint("lost ", id)})
				if got := fmt.Sprintf("%q", s.notes()); got != want {
					t.Errorf("noted %s, want %s", got, want)
				}
			})
		}
	}
}

// An outcome that is settled again, as after a lost answer, is settled once. A change of the row in
// between stands.
func TestLostAnswerOfASettle(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db, hole := s.openHole()
	s.h.Handle = func(context.Context, *table.Job[example]) error {
		hole.SwallowAnswer("jsonb_to_recordset") // of the settle
		return errRefused
	}
	s.o.StalledMaxAge = time.Minute
	s.o.RetryAfter = time.Hour
	w := s.worker(db, nil)
	s.start(w)
	id := s.add("")
	s.becomes(id, table.StateErrored)
	s.until("the settle to be repeated", func() bool { return w.Status().Failed == 1 && w.Status().SettleError == nil })
	s.want("failures", "1", `SELECT num_failures::text FROM example_jobs WHERE id = $1`, id)
}

// Jobs of a claim with a lost answer are released without a failure, and run.
func TestLostAnswerOfAClaim(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db, hole := s.openHole()
	id := s.add("")
	s.o.StalledMaxAge = time.Minute
	s.h.PreDequeue = func(context.Context) (bool, table.Condition, error) {
		if hole.Fallen() == 0 {
			hole.SwallowAnswer("picked AS MATERIALIZED") // of the claim
		}
		return true, table.Condition{}, nil
	}
	w := s.worker(db, nil)
	s.start(w)
	s.becomes(id, table.StateCompleted)
	s.want("resets and failures", "0 0", `SELECT num_resets || ' ' || num_failures FROM example_jobs WHERE id = $1`, id)
	if hole.Fallen() == 0 {
		t.Error("no connection has fallen in")
	}
}

// A connection that is lost during the start does not count as a fault of the table.
func TestLostAnswerAtTheStart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	db, hole := s.openHole()
	hole.SwallowAnswer("EXPLAIN")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		pgtest.Poll(func() bool { return hole.Fallen() > 0 })
		cancel()
	}()
	if err := table.NewStore(db, s.o).Check(ctx); err == nil || errors.Is(err, table.ErrUnfit) || hole.Fallen() == 0 {
		t.Errorf("Check: %v", err)
	}
}

// The handler's transaction and the completion of its job are one.
func TestCompleteTx(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end    func(tx *sql.Tx) error
		want   string
		effect string
	}{
		"committed":                 {func(tx *sql.Tx) error { return tx.Commit() }, "completed", "1"},
		"committed, then an error":  {func(tx *sql.Tx) error { return errors.Join(tx.Commit(), errRefused) }, "completed", "1"},
		"rolled back, then nil":     {func(tx *sql.Tx) error { return tx.Rollback() }, "failed", "0"},
		"rolled back with an error": {func(tx *sql.Tx) error { return errors.Join(tx.Rollback(), errRefused) }, "failed", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.d.Exec(t, `CREATE TABLE effects (job bigint)`)
			var worker atomic.Pointer[table.Worker]
			s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
				tx, err := s.d.DB.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, j.ID); err != nil {
					return err
				}
				if err := j.CompleteTx(ctx, tx); err != nil {
					return err
				}
				for range 2 { // heartbeats meet no lock and no end that stops them
					last := worker.Load().Status().LastHeartbeat
					s.until("a heartbeat", func() bool { return worker.Load().Status().LastHeartbeat.After(last) })
				}
				if ctx.Err() != nil {
					s.note("%v", context.Cause(ctx))
				}
				return c.end(tx)
			}
			worker.Store(s.run(nil))
			id := s.add("")
			s.becomes(id, table.State(c.want))
			s.want("effects", c.effect, `SELECT count(*)::text FROM effects`)
			if n := s.notes(); len(n) > 0 {
				t.Errorf("its context ended: %q", n)
			}
		})
	}
}

// A transaction that holds the row of one job delays neither heartbeats nor outcomes of other jobs.
// Its own job does not count as stalled.
func TestLockedRowDelaysNoOtherJobOfTheTable(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	release := make(chan struct{})
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		s.note("runs %d", j.ID)
		if j.ID > 2 {
			return nil
		}
		<-release
		return ctx.Err()
	}
	w := s.run(nil)
	held, other := s.add(""), s.add("")
	s.until("both to run", func() bool { return len(s.notes()) == 2 })
	tx, err := s.d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `UPDATE example_jobs SET failure_message = 'progress' WHERE id = $1`, held); err != nil {
		t.Fatal(err)
	}
	heartbeats := func(id int64) string {
		return s.text(`SELECT last_heartbeat_at::text FROM example_jobs WHERE id = $1`, id)
	}
	before := heartbeats(other)
	s.until("heartbeats of the other", func() bool { return heartbeats(other) != before })
	close(release)
	s.becomes(other, table.StateCompleted)
	s.becomes(s.add(""), table.StateCompleted)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.becomes(held, table.StateCompleted)
	s.until("the end to be reported", func() bool { return w.Status().Completed == 3 })
	s.want("resets", "0", `SELECT sum(num_resets)::text FROM example_jobs`)
}

// Rows of a handler that refer to its job do not keep the worker from the job.
func TestForeignKeyToTheJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.d.Exec(t, `CREATE TABLE parts (job integer REFERENCES example_jobs)`)
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		tx, err := s.d.DB.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, `INSERT INTO parts VALUES ($1)`, j.ID); err != nil {
			return err
		}
		read := func() string { return s.text(`SELECT last_heartbeat_at::text FROM example_jobs WHERE id = $1`, j.ID) }
		before := read()
		s.until("a heartbeat", func() bool { return read() != before })
		return tx.Commit()
	}
	s.run(nil)
	s.becomes(s.add(""), table.StateCompleted)
}
