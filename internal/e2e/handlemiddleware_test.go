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

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// The middleware has the transaction and the events of each call, after they were
// decoded, and its context arrives.
func TestHandleMiddleware(t *testing.T) {
	t.Parallel()
	type spanKey struct{}
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 10)
	var mu sync.Mutex
	calls := map[string][]int{}
	arrived := func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		if ctx.Value(spanKey{}) != "span" {
			return errors.New("the middleware's context did not arrive")
		}
		return nil
	}
	bulk := &bulkLedger{name: "bulk"}
	start(t, d.DB, []consumer.Consumer{&ledger{name: "one", before: arrived}, bulk}, worker.WithDecoder(upcast),
		worker.WithHandleMiddleware(func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				of, _ := consumer.Info(ctx)
				mu.Lock()
				calls[of.Consumer] = append(calls[of.Consumer], len(events))
				mu.Unlock()
				for _, e := range events {
					if e.EventVersion != 2 {
						return errors.New("the event was not decoded")
					}
				}
				if err := next(context.WithValue(ctx, spanKey{}, "span"), tx, nil); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position) VALUES ('audit', $1)`, events[0].GlobalPosition)
				return err
			}
		}))
	awaitHandled(t, d.DB, "one", upTo(10)...)
	awaitHandled(t, d.DB, "bulk", upTo(10)...)
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(calls) != "map[bulk:[10] one:[1 1 1 1 1 1 1 1 1 1]]" {
		t.Errorf("the calls had %v events", calls)
	}
	if n := one[int](t, d.DB, `SELECT count(*) FROM ledger WHERE consumer = 'audit'`); n != 11 {
		t.Errorf("the middleware wrote %d rows", n)
	}
}

// Whatever a middleware does, an event that was not handled is not passed.
func TestHandleMiddlewareThatIsBroken(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		middleware func(next worker.HandleFunc) worker.HandleFunc
		says       string
	}{
		"does nothing": {func(worker.HandleFunc) worker.HandleFunc {
			return func(context.Context, *sql.Tx, []store.PersistedEvent) error { return nil }
		}, "did not call"},
		"makes nil": {func(worker.HandleFunc) worker.HandleFunc { return nil }, "did not call"},
		"refuses": {func(worker.HandleFunc) worker.HandleFunc {
			return func(context.Context, *sql.Tx, []store.PersistedEvent) error { return errRefused }
		}, "refused"},
		"panics before": {func(worker.HandleFunc) worker.HandleFunc {
			return func(context.Context, *sql.Tx, []store.PersistedEvent) error { panic("before") }
		}, "before"},
		"panics after": {func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				_ = next(ctx, tx, events)
				panic("after")
			}
		}, "after"},
		"fails after": {func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				return errors.Join(next(ctx, tx, events), errRefused)
			}
		}, "refused"},
		"calls twice": {func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				return errors.Join(next(ctx, tx, events), next(ctx, tx, events))
			}
		}, "already"},
		"gives no context": {func(next worker.HandleFunc) worker.HandleFunc {
			return func(_ context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				return next(nil, tx, events) //nolint:staticcheck // that is what the test is for
			}
		}, "nil context"},
		"gives a context that panics": {func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				return next(panicky{ctx}, tx, events)
			}
		}, "a panic"},
		"ends the transaction": {func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				return errors.Join(next(ctx, tx, events), tx.Rollback())
			}
		}, worker.ErrTransactionEnded.Error()},
	} {
		for _, c := range []consumer.Consumer{&ledger{name: "c"}, &bulkLedger{name: "c"}} {
			t.Run(fmt.Sprintf("%s, %T", name, c), func(t *testing.T) {
				if _, bulk := c.(*bulkLedger); bulk {
					tier.Long(t, "TestHandleMiddlewareThatIsBroken, around a handler of single events")
				}
				d := newLog(t)
				appendN(t, d.DB, "Order", "1", 2)
				w := start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(2), worker.WithHandleMiddleware(test.middleware))
				err := w.result(t)
				if of := new(worker.ConsumerError); !errors.As(err, &of) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("Start returned %v", err)
				}
				if got := handled(t, d.DB, "c"); len(got) != 0 || checkpoint(t, d.DB, "c") != 0 {
					t.Errorf("handled %v, the checkpoint is %d", got, checkpoint(t, d.DB, "c"))
				}
			})
		}
	}
}

// A handler's error counts also if the middleware hides it, and an event that a batch
// consumer names is found.
func TestHandleMiddlewareThatHidesErrors(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	for i := range 10 {
		appendN(t, d.DB, "Order", fmt.Sprint(i), 1)
	}
	b := &bulkLedger{name: "c", fails: func(events []store.PersistedEvent) error {
		if at := slices.IndexFunc(events, func(e store.PersistedEvent) bool { return e.GlobalPosition == 4 }); at >= 0 {
			return &consumer.EventError{Index: at, Err: errRefused}
		}
		return nil
	}}
	start(t, d.DB, []consumer.Consumer{b}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1),
		worker.WithHandleMiddleware(func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				_ = next(ctx, tx, events)
				return nil
			}
		}))
	awaitHandled(t, d.DB, "c", 1, 2, 3, 5, 6, 7, 8, 9, 10)
}

// A middleware that calls the next function when it has returned handles nothing: by then,
// the batch is tried again.
func TestHandleMiddlewareThatCallsLate(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 2)
	var calls atomic.Int32
	again, late := make(chan struct{}), make(chan error, 1)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithHandleMiddleware(func(next worker.HandleFunc) worker.HandleFunc {
		return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
			switch calls.Add(1) {
			case 1:
				go func() {
					<-again
					late <- next(context.WithoutCancel(ctx), tx, events)
				}()
				return nil
			case 2:
				close(again)
				if err := <-late; err == nil || !strings.Contains(err.Error(), "has returned already") {
					t.Errorf("the late call returned %v", err)
				}
			}
			return next(ctx, tx, events)
		}
	}))
	awaitHandled(t, d.DB, "c", 1, 2)
}

// A middleware that returns while the next function runs is waited for: the handler has
// one call at a time.
func TestHandleMiddlewareThatDoesNotWait(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 3)
	var calls atomic.Int32
	type returnedKey struct{}
	l := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		ctx.Value(returnedKey{}).(chan struct{}) <- struct{}{} // it runs
		<-ctx.Value(returnedKey{}).(chan struct{})             // the middleware returns
		return nil
	}}
	start(t, d.DB, []consumer.Consumer{l}, worker.WithHandleMiddleware(func(next worker.HandleFunc) worker.HandleFunc {
		return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
			calls.Add(1)
			turn := make(chan struct{})
			go func() { _ = next(context.WithValue(ctx, returnedKey{}, turn), tx, events) }()
			<-turn
			defer close(turn)
			return nil
		}
	}))
	awaitHandled(t, d.DB, "c", 1, 2, 3)
	if n := calls.Load(); n != 3 {
		t.Errorf("the 3 events took %d calls", n)
	}
}

// Middleware of several options is nested, the first outermost.
func TestMiddlewareIsNested(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	var mu sync.Mutex
	var calls []string
	called := func(who string) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, who)
	}
	var opts []worker.Option
	for _, who := range []string{"outer", "inner"} {
		opts = append(opts, worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
			return func(ctx context.Context, b observe.Batch) error {
				called(who + " batch")
				return next(ctx, b)
			}
		}), worker.WithHandleMiddleware(func(next worker.HandleFunc) worker.HandleFunc {
			return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
				called(who + " handle")
				return next(ctx, tx, events)
			}
		}))
	}
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, append(opts, worker.WithBatchMiddleware(nil))...)
	awaitHandled(t, d.DB, "c", 1)
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"outer batch", "inner batch", "outer handle", "inner handle"}; !slices.Equal(calls, want) {
		t.Errorf("called %q, want %q", calls, want)
	}
}
