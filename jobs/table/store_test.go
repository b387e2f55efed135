package table_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs/table"
)

// Requeue runs any job again, and takes a running job from its handler.
func TestRequeue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		s.note("runs")
		if len(s.notes()) == 1 {
			<-ctx.Done()
			s.note("%v", context.Cause(ctx))
			return errRefused
		}
		return nil
	}
	store := table.NewStore(s.d.DB, s.o)
	w := s.run(nil)
	id := s.add("")
	s.until("the job to run", func() bool { return len(s.notes()) == 1 })
	s.d.Exec(t, `UPDATE example_jobs SET queued_at = NULL WHERE id = $1`, id)
	if err := store.Requeue(t.Context(), id, time.Time{}); err != nil {
		t.Fatal(err)
	}
	s.becomes(id, table.StateCompleted)
	s.until("the first run to be lost", func() bool { return w.Status().Lost == 1 })
	s.want("the row", "completed 0 0 false true", `SELECT state || ' ' || num_failures || ' ' || num_resets || ' ' || cancel || ' ' || (queued_at IS NOT NULL) FROM example_jobs WHERE id = $1`, id)
	if n := s.notes(); !slices.Contains(n, table.ErrClaimLost.Error()) {
		t.Errorf("noted %q", n)
	}
	s.d.Exec(t, `UPDATE example_jobs SET state = 'canceled', cancel = true WHERE id = $1`, id)
	if err := store.Requeue(t.Context(), id, time.Time{}); err != nil {
		t.Fatal(err)
	}
	s.becomes(id, table.StateCompleted)
	if err := store.Requeue(t.Context(), 99, time.Time{}); !errors.Is(err, table.ErrNotFound) {
		t.Errorf("a job that is not there: %v", err)
	}
}

// Requeue does not wait for ever for a locked row. It returns an error for a row that does not
// change.
func TestRequeueOfALockedOrUnchangedRow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	store := table.NewStore(s.d.DB, s.o)
	id := s.add("")
	hold, err := s.d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hold.Rollback() }()
	if _, err := hold.ExecContext(t.Context(), `UPDATE example_jobs SET state = 'failed' WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	if err := store.Requeue(t.Context(), 99, time.Time{}); !errors.Is(err, table.ErrNotFound) { // reads the columns
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := store.Requeue(short, id, time.Time{}); err == nil || !strings.Contains(err.Error(), "requeue job 1: another transaction holds the row") {
		t.Errorf("while it is held: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- store.Requeue(t.Context(), id, time.Now().Add(time.Hour)) }()
	if err := hold.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("held for a moment: %v", err)
	}
	s.want("the row", "queued true", `SELECT state || ' ' || (process_after > now()) FROM example_jobs WHERE id = $1`, id)
	s.script(strings.ReplaceAll(refusing["silence"], "{odd}", "true"))
	if err := store.Requeue(t.Context(), id, time.Time{}); err == nil || !strings.Contains(err.Error(), "must return NEW") {
		t.Errorf("unchanged: %v", err)
	}
}

// CountByState, Exists and MaxDurationInQueue count, and refuse invalid arguments.
func TestCounts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.o.Condition, s.o.RetryAfter = "j.repository_id < 10", time.Minute
	store := table.NewStore(s.d.DB, s.o)
	s.add(`(state, queued_at) VALUES ('queued', now() - interval '2 hours')`)
	s.add(`(state, queued_at, process_after) VALUES ('queued', now() - interval '9 hours', now() - interval '1 hour')`)
	s.add(`(state, queued_at, process_after) VALUES ('queued', now() - interval '9 hours', now() + interval '1 hour')`)
	s.add(`(state, finished_at) VALUES ('errored', now() - interval '3 hours')`)
	s.add(`(state, queued_at, repository_id) VALUES ('queued', now() - interval '4 hours', 11)`)
	s.add(`(state, queued_at, finished_at) VALUES ('completed', now() - interval '9 hours', now() - interval '9 hours')`)
	ctx := t.Context()
	n, err := store.CountByState(ctx, table.StateQueued, table.StateErrored)
	if n != 4 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
	for state, want := range map[table.State]bool{table.StateQueued: true, table.StateFailed: false} {
		if is, err := store.Exists(ctx, state); is != want || err != nil {
			t.Errorf("%s: %t, %v", state, is, err)
		}
	}
	if d, err := store.MaxDurationInQueue(ctx); d.Round(time.Minute) != 179*time.Minute || err != nil {
		t.Errorf("in queue for %v, %v", d, err)
	}
	for _, bad := range [][]table.State{{}, {"done"}, {table.StateQueued, `x","y`}} {
		if _, err := store.CountByState(ctx, bad...); err == nil {
			t.Errorf("%q are counted", bad)
		}
	}
	s.o.TableName = "nothing"
	if _, err := table.NewStore(s.d.DB, s.o).Exists(ctx, table.StateQueued); !errors.Is(err, table.ErrUnfit) {
		t.Errorf("without a table: %v", err)
	}
}

// Entries of the log are numbered, and an unknown number is an error.
func TestLog(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		for want := 1; want <= 2; want++ {
			if n, err := j.Log(ctx, map[string]int{"n": want}); n != want || err != nil {
				return fmt.Errorf("entry %d: %w", n, err)
			}
		}
		for _, bad := range []int{-1, 0, 3} {
			if err := j.UpdateLog(ctx, bad, 1); err == nil {
				return fmt.Errorf("entry %d was changed", bad)
			}
		}
		if _, err := j.Log(ctx, make(chan int)); err == nil {
			return errors.New("a channel was logged")
		}
		return j.UpdateLog(ctx, 2, "two")
	}
	s.run(nil)
	id := s.add("")
	s.becomes(id, table.StateCompleted)
	s.want("the log", `{"n":1} "two"`, `SELECT execution_logs[1]::text || ' ' || execution_logs[2]::text FROM example_jobs WHERE id = $1`, id)
}

// If PostgreSQL aborts a log statement for another one, with a stricter default isolation, the
// statement is retried.
func TestLogUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	begun, held, logged := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s.h.Handle = func(ctx context.Context, j *table.Job[example]) error {
		close(begun)
		<-held
		_, err := j.Log(ctx, "an entry")
		logged <- err
		return err
	}
	id := s.add("")
	s.start(s.worker(s.d.OpenSet(t, "default_transaction_isolation", "serializable"), nil))
	<-begun
	other, err := s.d.DB.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(`UPDATE example_jobs SET num_resets = num_resets WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	close(held)
	pgtest.AwaitBlocked(t, s.d.DB)
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-logged; err != nil {
		t.Error(err)
	}
	s.becomes(id, table.StateCompleted)
}
