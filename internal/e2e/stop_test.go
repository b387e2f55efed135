package e2e

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// ShutdownTimeout bounds the batches in flight also when a worker stops because
// one of its consumers has failed for good.
func TestShutdownTimeoutAfterAFatalError(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	inHand := make(chan struct{})
	slow := &ledger{name: "slow", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		close(inHand)
		<-ctx.Done()
		return ctx.Err()
	}}
	bad := &ledger{name: "bad", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		<-inHand
		return errRefused
	}}
	w := start(t, d.DB, []consumer.Consumer{slow, bad}, worker.WithMaxConsecutiveFailures(1),
		worker.WithShutdownTimeout(100*time.Millisecond), worker.WithBatchTimeout(time.Hour))
	if err := w.result(t); !errors.Is(err, errRefused) || errors.Is(err, worker.ErrHandlerOverdue) {
		t.Errorf("the worker ended with %v", err)
	}
}

// deaf is a consumer whose handler ignores its context, the first time, until
// it is released.
type deaf struct {
	ledger
	calls   atomic.Int32
	release chan struct{}
	ended   chan struct{} // closed when it has returned
}

func newDeaf(name string) *deaf {
	d := &deaf{ledger: ledger{name: name}, release: make(chan struct{}), ended: make(chan struct{})}
	d.before = func(context.Context, *sql.Tx, store.PersistedEvent) error {
		if d.calls.Add(1) == 1 {
			defer close(d.ended)
			<-d.release
		}
		return nil
	}
	return d
}

// rowIsFree reports whether nobody holds a consumer's row.
func rowIsFree(d *pgtest.Database, consumer string) bool {
	var position int64
	return d.DB.QueryRow(`SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1 FOR UPDATE NOWAIT`, consumer).Scan(&position) == nil
}

// A handler that ignores the end of its context is told of for as long as it
// lasts, with the event that it was given. Its transaction is rolled back meanwhile.
func TestHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	release := make(chan struct{})
	c := &ledger{name: "deaf", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition == 2 {
			<-release
		}
		return nil
	}}
	var overdue atomic.Pointer[observe.Batch]
	w := start(t, d.DB, []consumer.Consumer{c}, worker.WithBatchTimeout(time.Second),
		worker.WithObserver(observe.On(func(b observe.HandlerOverdue) { overdue.Store(&b.Batch) })))
	isOverdue := func() bool { return errors.Is(statusOf(w.Worker, "deaf").LastError, worker.ErrHandlerOverdue) }
	await(t, "the status to say that the handler is overdue", isOverdue)
	await(t, "the observer to be told", func() bool { return overdue.Load() != nil })
	if b := overdue.Load(); b.Consumer != "deaf" || b.Last < 2 || !strings.Contains(b.Err.Error(), "; it was given the event at position 2 (") {
		t.Errorf("the observer is told of %+v", b)
	}
	await(t, "the consumer's row to be free", func() bool { return rowIsFree(d, "deaf") })
	if !isOverdue() || slices.Contains(handled(t, d.DB, "deaf"), 2) {
		t.Errorf("the handler still runs, the status says %v, handled are %v", statusOf(w.Worker, "deaf").LastError, handled(t, d.DB, "deaf"))
	}
	if at := statusOf(w.Worker, "deaf").Stuck; at != 2 {
		t.Errorf("it is stuck at position %d", at)
	}
	close(release)
	await(t, "the status to say so no longer", func() bool { return !isOverdue() && statusOf(w.Worker, "deaf").Stuck == 0 })
	awaitHandled(t, d.DB, "deaf", upTo(3)...)
}

// Start returns without a handler that ignores its context, and names its
// consumer. Another worker goes on with that.
func TestStopLeavesBehindAHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]worker.Option{
		"bounded by BatchTimeout":    {worker.WithBatchTimeout(time.Second)},
		"bounded by ShutdownTimeout": {worker.WithBatchTimeout(time.Hour), worker.WithShutdownTimeout(100 * time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			c := newDeaf("deaf")
			defer func() { close(c.release); <-c.ended }()
			w := worker.New(d.DB, newStore(), []consumer.Consumer{c, &ledger{name: "good"}}, append(quick(), opts...)...)
			setLeave(w, 500*time.Millisecond)
			r := runWorker(t, w)
			awaitHandled(t, d.DB, "good", 1) // so that its batch cannot be overdue
			await(t, "the handler to run", func() bool { return c.calls.Load() == 1 })
			w.Stop()
			err := r.result(t)
			if !errors.Is(err, worker.ErrHandlerOverdue) || !strings.Contains(err.Error(), `"deaf"`) || strings.Contains(err.Error(), `"good"`) {
				t.Errorf("Start returned %v", err)
			}
			start(t, d.DB, []consumer.Consumer{c})
			awaitHandled(t, d.DB, "deaf", 1)
		})
	}
}

// While one consumer of a worker that stops finishes a slow batch, the others run elsewhere,
// whatever worker leads, and the worker is given no other.
func TestOneSlowBatchKeepsNoOtherConsumer(t *testing.T) {
	t.Parallel()
	for name, leads := range map[string]bool{"the leader stops": true, "another leads": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			inHand, release := make(chan struct{}), make(chan struct{})
			defer close(release)
			slow := &ledger{name: "slow", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
				close(inHand)
				<-release
				return nil
			}}
			names := []string{"c0", "c1", "c2", "c3", "slow"}
			quick := func() (all []consumer.Consumer) {
				for _, n := range names[:4] {
					all = append(all, &ledger{name: n})
				}
				return all
			}
			fleet := map[bool]*running{}
			for _, first := range []bool{true, false} { // the first that starts leads
				consumers := quick()
				if first == leads {
					consumers = append(consumers, slow)
				}
				w := start(t, d.DB, consumers, worker.WithHeartbeatInterval(time.Second), worker.WithHeartbeatTimeout(time.Minute), worker.WithBatchTimeout(time.Hour))
				fleet[first == leads] = w
				await(t, "it to be registered", func() bool { return !w.Status().LastHeartbeat.IsZero() })
				if first {
					await(t, "it to lead", func() bool { return w.Status().Leader })
				}
			}
			stops := fleet[true]
			await(t, "both to have some", func() bool {
				return one[int](t, d.DB, `SELECT count(DISTINCT worker_id) FROM consumer_assignments`) == 2 && one[int](t, d.DB, `SELECT count(*) FROM consumer_assignments`) == 5
			})
			appendN(t, d.DB, "Order", "1", 1)
			<-inHand
			stops.Stop()
			appendN(t, d.DB, "Order", "1", 1)
			for _, n := range names[:4] {
				awaitHandled(t, d.DB, n, 1, 2)
			}
			await(t, "the others to have all", func() bool {
				return one[int](t, d.DB, `SELECT count(*) FROM consumer_assignments WHERE worker_id = $1 AND consumer_name <> 'slow'`, stops.ID().String()) == 0
			})
			if got := handled(t, d.DB, "slow"); got != nil {
				t.Errorf("the slow one has handled %v", got)
			}
		})
	}
}

// A worker that stops keeps a consumer until the consumer's own batch has ended: only this
// worker can set the checkpoint back if the handler has ended the transaction.
func TestStopKeepsAConsumerUntilItsBatchHasEnded(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	if !reportsMarks(t, "pgx", d) {
		t.Skip("the server does not show the end of the transaction to the driver")
	}
	appendN(t, d.DB, "Order", "1", 6)
	inHand, release := make(chan struct{}), make(chan struct{})
	var overtaken func()
	c := ender(endings["COMMIT AND CHAIN"], func() error {
		overtaken()
		return errRefused
	})
	ends := c.before
	c.before = func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition == 3 {
			close(inHand)
			<-release
		}
		return ends(ctx, tx, e)
	}
	stops := start(t, d.DB, []consumer.Consumer{c, &ledger{name: "other"}})
	<-inHand
	var second *worker.Worker // of two, the one with the lesser id gets c
	for second == nil || second.ID().String() < stops.ID().String() {
		second = worker.New(d.DB, newStore(), []consumer.Consumer{&ledger{name: "c"}, &ledger{name: "other"}}, quick()...)
	}
	goes := runWorker(t, second)
	await(t, "the second worker to be registered", func() bool { return !goes.Status().LastHeartbeat.IsZero() })
	holds := func(consumer string, w *running) bool {
		return one[int](t, d.DB, `SELECT count(*) FROM consumer_assignments WHERE consumer_name = $1 AND worker_id = $2`, consumer, w.ID().String()) == 1
	}
	stops.Stop()
	await(t, "the other consumer to be handed over", func() bool { return holds("other", goes) })
	overtaken = func() { // by the second worker, if it has the consumer by now
		if holds("c", goes) {
			pgtest.Poll(func() bool { return slices.Contains(handled(t, d.DB, "c"), 7) })
		}
	}
	appendN(t, d.DB, "Order", "1", 1)
	close(release)
	if err := stops.result(t); !errors.Is(err, worker.ErrTransactionEnded) || !strings.Contains(err.Error(), "set back from") {
		t.Errorf("the first worker ended with %v", err)
	}
	await(t, "all events", func() bool {
		return one[int](t, d.DB, `SELECT count(DISTINCT position) FROM ledger WHERE consumer = 'c'`) == one[int](t, d.DB, `SELECT count(*) FROM events`)
	})
}
