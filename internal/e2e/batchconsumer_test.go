package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// bulkLedger writes a batch in one statement.
type bulkLedger struct {
	consumer.BatchOnly
	name  string
	fails func(events []store.PersistedEvent) error
	sizes chan int
}

func (b *bulkLedger) Name() string { return b.name }

func (b *bulkLedger) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	if b.fails != nil {
		if err := b.fails(events); err != nil {
			return err
		}
	}
	var list strings.Builder
	for i, e := range events {
		fmt.Fprintf(&list, "%s(%d)", map[bool]string{true: ",", false: ""}[i > 0], e.GlobalPosition)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) SELECT $1, p FROM (VALUES `+list.String()+`) AS v(p)`, b.name)
	if b.sizes != nil {
		b.sizes <- len(events)
	}
	return err
}

func TestBatchConsumer(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 250)
	b := &bulkLedger{name: "bulk", sizes: make(chan int, 100)}
	start(t, d.DB, []consumer.Consumer{b})
	awaitHandled(t, d.DB, "bulk", upTo(250)...)
	if first, second := <-b.sizes, <-b.sizes; first != 10 || second != 100 {
		t.Errorf("the first batches had %d and %d events, want 10 and 100", first, second)
	}
}

// The event that fails is found in a batch, named or not, and goes alone.
func TestBatchConsumerThatFails(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(events []store.PersistedEvent, at int) error{
		"names it":         func(_ []store.PersistedEvent, at int) error { return &consumer.EventError{Index: at, Err: errRefused} },
		"does not name it": func([]store.PersistedEvent, int) error { return errRefused },
		"names what is not": func(e []store.PersistedEvent, _ int) error {
			return &consumer.EventError{Index: len(e), Err: errRefused}
		},
		"panics": func([]store.PersistedEvent, int) error { panic(errRefused) },
		"names it, in words": func(_ []store.PersistedEvent, at int) error {
			return fmt.Errorf("projection: %w", &consumer.EventError{Index: at, Err: errRefused})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, n := newLog(t), tier.Amount(40, 100)
			for i := range n {
				appendN(t, d.DB, "Order", fmt.Sprint(i), 1)
			}
			b := &bulkLedger{name: "bulk", fails: func(events []store.PersistedEvent) error {
				if at := slices.IndexFunc(events, func(e store.PersistedEvent) bool { return e.GlobalPosition == 37 }); at >= 0 {
					return fail(events, at)
				}
				return nil
			}}
			start(t, d.DB, []consumer.Consumer{b}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(2))
			awaitHandled(t, d.DB, "bulk", slices.DeleteFunc(upTo(int64(n)), func(p int64) bool { return p == 37 })...)
			letters, err := operator(t, d).DeadLetters(t.Context(), "bulk")
			if err != nil || len(letters) != 1 || letters[0].Position != 37 || !strings.Contains(letters[0].Error, "refused") {
				t.Errorf("the dead letters are %+v, %v", letters, err)
			}
		})
	}
}

// A target that is away for a moment fails every batch, however small. It is
// neither the end of a worker nor the fault of an event.
func TestBatchConsumerOutlastsATargetThatIsAway(t *testing.T) {
	t.Parallel()
	for _, policy := range []worker.FailurePolicy{worker.FailStop, worker.FailPause, worker.FailDeadLetter} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 100)
			var back atomic.Int64 // when the target is back
			b := &bulkLedger{name: "bulk", fails: func([]store.PersistedEvent) error {
				now := time.Now()
				if back.CompareAndSwap(0, now.Add(300*time.Millisecond).UnixNano()); now.UnixNano() < back.Load() {
					return errRefused
				}
				return nil
			}}
			w := start(t, d.DB, []consumer.Consumer{b}, worker.WithFailurePolicy(policy), worker.WithPollInterval(worker.DefaultConfig().PollInterval))
			awaitHandled(t, d.DB, "bulk", upTo(100)...)
			if s := statusOf(w.Worker, "bulk"); s.Paused != nil || s.DeadLetters != 0 {
				t.Errorf("the status is %+v", s)
			}
		})
	}
}

func TestBatchMiddleware(t *testing.T) {
	t.Parallel()
	type spanKey struct{}
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	var outcomes []error
	var mu sync.Mutex
	c := newRefusing("c", 2)
	c.before = func(inner func(context.Context, *sql.Tx, store.PersistedEvent) error) func(context.Context, *sql.Tx, store.PersistedEvent) error {
		return func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
			if ctx.Value(spanKey{}) != "c" {
				return errors.New("the middleware's context did not arrive")
			}
			err := inner(ctx, tx, e)
			c.refuses.Store(false) // once is enough
			return err
		}
	}(c.before)
	start(t, d.DB, []consumer.Consumer{c}, worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
		return func(ctx context.Context, b observe.Batch) error {
			err := next(context.WithValue(ctx, spanKey{}, b.Consumer), b)
			mu.Lock()
			outcomes = append(outcomes, err)
			mu.Unlock()
			return errors.New("what the middleware says changes nothing")
		}
	}))
	awaitHandled(t, d.DB, "c", upTo(3)...)
	await(t, "the middleware to return", func() bool { // which it does after the COMMIT
		mu.Lock()
		defer mu.Unlock()
		return len(outcomes) > 0
	})
	mu.Lock()
	defer mu.Unlock()
	for _, err := range outcomes {
		if err != nil && !errors.Is(err, errRefused) {
			t.Errorf("next said %v", err)
		}
	}
}

// panicky is a context of somebody's own that does not work.
type panicky struct{ context.Context }

func (panicky) Err() error { panic("no context") }

// A batch that ends in a panic on its way has not happened, also if the middleware
// hides that.
func TestBatchMiddlewareWithABadContext(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bad  func(context.Context) context.Context
		says string
	}{
		"nil":    {func(context.Context) context.Context { return nil }, "nil context"},
		"panics": {func(ctx context.Context) context.Context { return panicky{ctx} }, "a panic"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 3)
			w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithMaxConsecutiveFailures(2),
				worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
					return func(ctx context.Context, b observe.Batch) error {
						defer func() { _ = recover() }()
						return next(test.bad(ctx), b)
					}
				}))
			if err := w.result(t); !errors.Is(err, worker.ErrConsecutiveFailures) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Start returned %v", err)
			}
			if status := w.Status().Consumers[0]; status.Handled != 0 || status.Position != 0 || status.LastError == nil {
				t.Errorf("its status is %+v", status)
			}
		})
	}
}

func TestBatchMiddlewareThatDoesNothing(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithMaxConsecutiveFailures(1),
		worker.WithBatchMiddleware(func(worker.BatchFunc) worker.BatchFunc {
			return func(context.Context, observe.Batch) error { return nil }
		}))
	if err := w.result(t); !errors.Is(err, worker.ErrConsecutiveFailures) || !strings.Contains(err.Error(), "did not call") || strings.Contains(err.Error(), "%!") {
		t.Fatalf("Start returned %v", err)
	}
	if got := handled(t, d.DB, "c"); len(got) != 0 || checkpoint(t, d.DB, "c") != 0 {
		t.Errorf("handled %v", got)
	}
}
