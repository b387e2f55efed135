package worker_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

func TestWaitFor(t *testing.T) {
	d := newLog(t)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := worker.New(d.DB, nil, nil).WaitFor(ended, "c", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a worker that was not started: %v", err)
	}
	owner := start(t, d.DB, []consumer.Consumer{newRefusing("c", 12)}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))
	other := start(t, d.DB, []consumer.Consumer{&ledger{name: "another"}})
	for range 11 {
		appendN(t, d.DB, "Order", "1", 1)
		head := latestPosition(t, d.DB)
		for _, w := range []*worker.Worker{owner.Worker, other.Worker} {
			if err := w.WaitFor(t.Context(), "c", head); err != nil {
				t.Fatal(err)
			}
			if got := handled(t, d.DB, "c"); int64(len(got)) != head {
				t.Fatalf("at position %d only %v are handled", head, got)
			}
		}
	}
	appendN(t, d.DB, "Order", "1", 1)
	if err := owner.WaitFor(t.Context(), "c", 12); !errors.Is(err, worker.ErrDeadLettered) {
		t.Errorf("a dead letter: %v", err)
	}
	for name, says := range map[string]string{"c": "it is at position 12", "nobody": "no worker has run it"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := owner.WaitFor(ctx, name, 99); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
			t.Errorf("a context that ended: %v", err)
		}
		cancel()
	}
}

func latestPosition(t *testing.T, db *sql.DB) (head int64) {
	t.Helper()
	if err := db.QueryRow(`SELECT max(global_position) FROM events`).Scan(&head); err != nil {
		t.Fatal(err)
	}
	return head
}

// A position that is in doubt has been passed, not handled.
func TestWaitForALateEvent(t *testing.T) {
	d := newLog(t)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithStaleGapThreshold(50*time.Millisecond))
	open := beginAppend(t, d.DB, "Order", "late", 1) // position 1
	defer func() { _ = open.Rollback() }()
	appendN(t, d.DB, "Order", "1", 1)
	if err := w.WaitFor(t.Context(), "c", 2); err != nil {
		t.Fatal(err)
	}
	await(t, "WaitFor to look, and to go on waiting", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := w.WaitFor(ctx, "c", 1)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("while the transaction is open: %v", err)
		}
		return strings.Contains(err.Error(), "no event has appeared there yet")
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := w.WaitFor(ctx, "c", 1); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Fatalf("a context that ended: %v", err)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "c", 1); err != nil {
		t.Fatal(err)
	}
	if got := handled(t, d.DB, "c"); len(got) != 2 {
		t.Errorf("handled %v", got)
	}
}

// At the end of ShutdownTimeout a batch that ignores its worker's end is
// rolled back.
func TestShutdownTimeout(t *testing.T) {
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	in := make(chan struct{})
	c := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		close(in)
		<-ctx.Done()
		return errNotWritten
	}}
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithShutdownTimeout(20*time.Millisecond))
	<-in
	w.Stop()
	if err := w.result(t); err != nil {
		t.Fatal(err)
	}
	if checkpoint(t, d.DB, "c") != 0 {
		t.Error("the batch was committed")
	}
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	awaitHandled(t, d.DB, "c", 1)
}
