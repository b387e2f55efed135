package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestWaitFor(t *testing.T) {
	t.Parallel()
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
	awaitLook(t, owner, "c", 99, "it is at position 12")
}

// awaitLook calls WaitFor with little time, until it has polled and says why it waits.
func awaitLook(t *testing.T, w *running, consumer string, position int64, says string) {
	t.Helper()
	enough := 50 * time.Millisecond // on a machine that keeps up
	await(t, fmt.Sprintf("WaitFor to look how far %s is, and to say %q", consumer, says), func() bool {
		enough *= 2
		ctx, cancel := context.WithTimeout(t.Context(), enough)
		defer cancel()
		err := w.WaitFor(ctx, consumer, position)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, worker.ErrNoConsumer) {
			t.Fatalf("WaitFor of %s does not go on: %v", consumer, err)
		}
		return strings.Contains(err.Error(), says)
	})
}

// A name that no worker knows is a mistake. One that a worker has code for is
// not, although it has no checkpoint yet.
func TestWaitForAConsumerThatIsNot(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	if err := w.WaitFor(t.Context(), "C", 1); !errors.Is(err, worker.ErrNoConsumer) || !strings.Contains(err.Error(), `"C"`) {
		t.Errorf("a mistyped name: %v", err)
	}
	if err := w.WaitFor(t.Context(), "c#000-3ff", 1); !errors.Is(err, worker.ErrNoConsumer) || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("a part: %v", err)
	}
	if n := len(w.Status().Consumers); n != 1 {
		t.Errorf("the status shows %d consumers: who waits makes none", n)
	}
	d.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_timeout, consumers) VALUES (gen_random_uuid(), '1 day', '{new}')`)
	awaitLook(t, w, "new", 1, "no worker has run it yet")
}

// Nobody waits for a worker that will never poll, and what is said of the consumer
// was seen.
func TestWaitForSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	failed := worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}}, worker.WithBatchSize(-1))
	if err := failed.Start(t.Context()); !errors.Is(err, worker.ErrInvalidConfig) {
		t.Fatal(err)
	}
	bound, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	if err := failed.WaitFor(bound, "c", 1); err == nil || !strings.Contains(err.Error(), "the error of its Start says why") {
		t.Errorf("after a Start that failed: %v", err)
	}
	appendN(t, d.DB, "Order", "1", 1)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}})
	if err := waitFor(t, w, "c", 1); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // whatever a select draws
		if err := w.WaitFor(over, "c", 100); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the checkpoint was not read yet") {
			t.Fatalf("with a context that has ended: %v", err)
		}
	}
}

// Where both workers listen, the one that runs the consumer says when it is
// there. None of them would poll within this test.
func TestWaitForIsToldByAnotherWorker(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	opts := []worker.Option{
		worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), worker.WithNotifyConnectionString(d.URL), worker.WithDispatcherInterval(time.Hour),
	}
	log := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNotifyChannel(worker.DefaultConfig().NotifyChannel)))
	owner := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, opts...)
	other := start(t, d.DB, []consumer.Consumer{&ledger{name: "another"}}, opts...)
	await(t, "both to listen, and the consumer to run", func() bool {
		var listening int
		err := d.DB.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE 'LISTEN "worker_waits_%'`).Scan(&listening)
		return err == nil && listening == 2 && statusOf(owner.Worker, "c").Lag != nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 50 {
				head, err := appendOne(ctx, d.DB, log, fmt.Sprint("aggregate ", i))
				if err == nil {
					err = other.WaitFor(ctx, "c", head)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if got := len(handled(t, d.DB, "c")); got != 200 {
		t.Errorf("%d events are handled", got)
	}
}

// appendOne commits an event and returns its position.
func appendOne(ctx context.Context, db *sql.DB, log *storepostgres.Store, id string) (int64, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	result, err := log.Append(ctx, tx, store.Any(), []store.Event{event("Order", id)})
	if err != nil {
		return 0, err
	}
	return result.GlobalPositions[0], tx.Commit()
}

func latestPosition(t *testing.T, db *sql.DB) (head int64) {
	t.Helper()
	if err := db.QueryRow(`SELECT max(global_position) FROM events`).Scan(&head); err != nil {
		t.Fatal(err)
	}
	return head
}

// WaitFor does not believe a server without a token: an old primary that has crashed may be
// ahead of the promoted one. Here the frontier hangs, so that nobody puts a token there.
func TestWaitForTrustsNoServerWithoutAToken(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	var hung atomic.Bool
	leave := make(chan struct{})
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithGapPolicy(worker.GapWait), worker.WithStaleGapThreshold(stale), worker.WithHeartbeatTimeout(time.Minute),
		worker.WithObserver(observe.On(func(observe.FrontierBlocked) { hung.Store(true); <-leave })))
	t.Cleanup(func() { close(leave) })
	appendN(t, d.DB, "Order", "1", 1)
	if err := w.WaitFor(t.Context(), "c", 1); err != nil {
		t.Fatal(err)
	}
	open := beginAppend(t, d.DB, "Order", "open", 1)
	defer func() { _ = open.Rollback() }()
	appendN(t, d.DB, "Order", "1", 1)
	await(t, "the frontier to report the open transaction", hung.Load)
	d.Exec(t, `DELETE FROM consumer_checkpoints_token`)
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 1000`)
	for _, consumer := range []string{"c", "unknown"} {
		awaitLook(t, w, consumer, 500, "is not the one that the worker reads")
	}
}

// A position that is in doubt has been passed, not handled.
func TestWaitForALateEvent(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithStaleGapThreshold(50*time.Millisecond))
	open := beginAppend(t, d.DB, "Order", "late", 1) // position 1
	defer func() { _ = open.Rollback() }()
	appendN(t, d.DB, "Order", "1", 1)
	if err := w.WaitFor(t.Context(), "c", 2); err != nil {
		t.Fatal(err)
	}
	awaitLook(t, w, "c", 1, "no event has appeared there yet")
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
	t.Parallel()
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
