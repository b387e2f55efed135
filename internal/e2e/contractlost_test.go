package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// A handler that never returns, since it ends its goroutine, has its commit
// undone all the same.
func TestHandlerThatCommitsAndCallsGoexit(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	err := start(t, d.DB, []consumer.Consumer{ender(endings["tx.Commit"], func() error { runtime.Goexit(); return nil })}).result(t)
	if err == nil || checkpoint(t, d.DB, "c") != 0 {
		t.Errorf("Start returned %v, the checkpoint is at %d", err, checkpoint(t, d.DB, "c"))
	}
	expectRest(t, d, 0)
}

// A connection that is lost in a handler is no end of the transaction by it.
func TestHandlerThatLosesItsConnection(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			d := newLog(t)
			db := open(t, d, driver)
			appendN(t, d.DB, "Order", "1", 6)
			var lost atomic.Bool
			start(t, db, []consumer.Consumer{&ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
				if e.GlobalPosition == 3 && lost.CompareAndSwap(false, true) {
					return statements(`SELECT pg_terminate_backend(pg_backend_pid())`)(ctx, tx)
				}
				return nil
			}}})
			awaitHandled(t, d.DB, "c", upTo(6)...)
		})
	}
}

// A handler's commit is found also where its connection dies with it.
func TestHandlerThatCommitsAndLosesItsConnection(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			d := newLog(t)
			db := open(t, d, driver)
			want := expectation{checkpoint: 2, position: 3, says: "set back from 6 to 2"}
			if !reportsMarks(t, driver, d) {
				want = expectation{says: "set back from 6 to 0"}
			}
			appendN(t, d.DB, "Order", "1", 6)
			c := ender(endings["COMMIT AND CHAIN"], nil)
			c.before = func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
				if event.GlobalPosition != 3 {
					return nil
				}
				return statements(`INSERT INTO ledger (consumer, position) VALUES ('c', 3)`, `COMMIT AND CHAIN`, `SELECT pg_terminate_backend(pg_backend_pid())`)(ctx, tx)
			}
			want.check(t, d, start(t, db, []consumer.Consumer{c}).result(t))
			expectRest(t, d, want.checkpoint)
		})
	}
}

// A middleware that ends its goroutine after the batch was committed does not
// make that commit the handler's.
func TestMiddlewareThatCallsGoexitAfterTheCommit(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 6)
	exits := worker.WithBatchMiddleware(func(next worker.BatchFunc) worker.BatchFunc {
		return func(ctx context.Context, b observe.Batch) error {
			defer runtime.Goexit()
			return next(ctx, b)
		}
	})
	err := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, exits).result(t)
	if err == nil || errors.Is(err, worker.ErrTransactionEnded) || checkpoint(t, d.DB, "c") != 6 {
		t.Errorf("Start returned %v, the checkpoint is at %d", err, checkpoint(t, d.DB, "c"))
	}
	expectRest(t, d, 6)
}

// The session ends behind the handler's commit, and nobody has noticed when the
// handler returns. The event that it lost is the one to come again, not the
// next.
func TestHandlerThatCommitsAndWhoseSessionEnds(t *testing.T) {
	t.Parallel()
	for how, e := range endings {
		if !e.commits || !e.chains {
			continue
		}
		for _, driver := range []string{"pgx", "lib/pq"} {
			t.Run(driver+" "+how, func(t *testing.T) {
				d := newLog(t)
				db := open(t, d, driver)
				want := expectation{says: "set back from 6 to 0"}
				if reportsMarks(t, driver, d) {
					want = expectation{checkpoint: 2, position: 3, says: "set back from 6 to 2"}
				}
				appendN(t, d.DB, "Order", "1", 6)
				c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error {
					if event.GlobalPosition != 3 {
						return nil
					}
					var pid int
					if err := e.end(ctx, tx); err != nil {
						return err
					}
					if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
						return err
					}
					d.Exec(t, fmt.Sprintf(`SELECT pg_terminate_backend(%d)`, pid))
					await(t, "the session to end", func() (gone bool) {
						_ = d.DB.QueryRow(`SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(&gone)
						return gone
					})
					return errNotWritten
				}}
				want.check(t, d, start(t, db, []consumer.Consumer{c}).result(t))
				expectRest(t, d, want.checkpoint)
			})
		}
	}
}
