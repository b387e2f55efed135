package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// mute is an error that nobody can print: it panics with itself.
type mute struct{}

func (m mute) Error() string { panic(m) }

func TestFailingHandler(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		handle func(ctx context.Context, tx *sql.Tx) error
		is     error
		says   string
		opts   []worker.Option
		tries  int32 // default 3
	}{
		"an error": {
			handle: func(context.Context, *sql.Tx) error { return boom },
			is:     boom, says: "boom",
		},
		"a panic": {
			handle: func(context.Context, *sql.Tx) error { panic("no such order") },
			says:   "handler panicked at ",
		},
		"an error of many lines and a megabyte": {
			handle: func(context.Context, *sql.Tx) error {
				return errors.Join(boom, errors.New(strings.Repeat("order\n", 200_000)))
			},
			is: boom, says: "boom; order; order",
		},
		"a panic with an error": {
			handle: func(context.Context, *sql.Tx) error { panic(boom) },
			is:     boom, says: "panicked",
		},
		"a nil pointer in an error": {
			handle: func(context.Context, *sql.Tx) error { return (*os.PathError)(nil) },
			says:   "<nil> (a nil *fs.PathError is not a nil error",
		},
		"a wrapped nil pointer": {
			handle: func(context.Context, *sql.Tx) error {
				return fmt.Errorf("order 7: %w", (*pgconn.PgError)(nil))
			},
			says: "order 7: <nil>",
		},
		"an error that panics": {
			handle: func(context.Context, *sql.Tx) error { return mute{} },
			says:   "PANIC=method of e2e.mute",
		},
		"a panic with a value that panics": {
			handle: func(context.Context, *sql.Tx) error { panic(mute{}) },
			says:   "PANIC=method of e2e.mute",
		},
		"a batch that takes too long": {
			handle: func(ctx context.Context, _ *sql.Tx) error { <-ctx.Done(); return ctx.Err() },
			says:   "longer than BatchTimeout",
			opts:   []worker.Option{worker.WithBatchTimeout(300 * time.Millisecond)},
		},
		"a statement too long for the batch": {
			handle: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
				return err
			},
			says: "longer than BatchTimeout",
			opts: []worker.Option{worker.WithBatchTimeout(300 * time.Millisecond)},
		},
		"a swallowed SQL error": {
			handle: func(ctx context.Context, tx *sql.Tx) error {
				_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
				return errNotWritten
			},
			says: "aborted the transaction",
		},
		"a deferred constraint": {
			handle: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO child VALUES (1)`)
				return err
			},
			says: "child_fk",
			// A COMMIT names no event: twice with the events before it, and
			// then alone.
			tries: 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			d.Exec(t, `CREATE TABLE parent (id INT PRIMARY KEY)`)
			d.Exec(t, `CREATE TABLE child (id INT CONSTRAINT child_fk REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
			appendN(t, d.DB, "Order", "1", 3)
			var calls atomic.Int32
			c := &ledger{name: "failing", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition != 3 {
					return nil
				}
				calls.Add(1)
				return test.handle(ctx, tx)
			}}
			var disturbed atomic.Int32 // batches that the database has ended, not the handler
			count := worker.WithObserver(observe.On(func(r observe.Retrying) {
				if !r.ByHandler {
					disturbed.Add(1)
				}
			}))
			w := start(t, d.DB, []consumer.Consumer{c}, append([]worker.Option{worker.WithMaxConsecutiveFailures(3), count}, test.opts...)...)
			err := w.result(t)
			if !errors.Is(err, worker.ErrConsecutiveFailures) {
				t.Fatalf("Start returned %v, want ErrConsecutiveFailures", err)
			}
			var ce *worker.ConsumerError
			if !errors.As(err, &ce) || ce.Consumer != "failing" || ce.Failures != 3 || ce.Position != 3 {
				t.Fatalf("%v does not tell the consumer and its failures", err)
			}
			if shown := w.Status().Consumers[0].LastError; shown == nil || errors.Is(shown, worker.ErrConsecutiveFailures) {
				t.Errorf("the status says %v, want the failure as it was when it happened", shown)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v does not wrap %v", err, test.is)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v does not say %q", err, test.says)
			}
			if text := err.Error(); strings.Contains(text, "\n") || len(text) > 5_000 {
				t.Errorf("it says %d bytes on %d lines", len(text), strings.Count(text, "\n")+1)
			}
			if n, want := calls.Load(), max(test.tries, 3); n < want || n > want+disturbed.Load() {
				t.Errorf("tried %d times, want %d, and once more for each of %d batches that the database has ended", n, want, disturbed.Load())
			}
			if got := handled(t, d.DB, "failing"); !slices.Equal(got, upTo(2)) || checkpoint(t, d.DB, "failing") != 2 {
				t.Errorf("what comes before the failing event left ledger %v and checkpoint %d", got, checkpoint(t, d.DB, "failing"))
			}
		})
	}
}

func TestHandlerThatEndsTheTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"commits":        func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		"rolls back":     func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		"commits by SQL": func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, `COMMIT`); return err },
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			w := start(t, d.DB, []consumer.Consumer{&handler{name: "ending", handle: end}})
			err := w.result(t)
			var ce *worker.ConsumerError
			if !errors.Is(err, worker.ErrTransactionEnded) || !errors.As(err, &ce) || ce.Position != 1 {
				t.Fatalf("Start returned %v, want ErrTransactionEnded at position 1", err)
			}
		})
	}
}

func TestFailureThatPassesIsForgotten(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	var calls atomic.Int32
	c := &ledger{name: "flaky", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
		if calls.Add(1)%2 == 1 {
			return errors.New("every other time")
		}
		return nil
	}}
	start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(2), worker.WithBatchSize(1), worker.WithPollInterval(time.Millisecond))
	awaitHandled(t, d.DB, "flaky", upTo(6)...)
}

// With lib/pq, too, the error of an aborted transaction says what to do, whether the commit or the
// handler's next statement finds the transaction aborted.
func TestSwallowedErrorWithPQ(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"", `SELECT 1`} {
		d := newLog(t)
		db := d.OpenPQ(t)
		appendN(t, d.DB, "Order", "1", 1)
		c := &ledger{name: "failing", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
			_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
			if next == "" {
				return errNotWritten
			}
			_, err := tx.ExecContext(ctx, next)
			return err
		}}
		err := start(t, db, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(2)).result(t)
		if !errors.Is(err, worker.ErrConsecutiveFailures) || !strings.Contains(err.Error(), "return the error of that statement") {
			t.Errorf("after %q: Start returned %v", next, err)
		}
	}
}
