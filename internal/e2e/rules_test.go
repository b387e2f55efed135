package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
)

// What a handler returns is its own failure and counts, also if it wraps an
// error of the library that means something else when that says it.
func TestErrorsOfTheLibraryFromAHandler(t *testing.T) {
	t.Parallel()
	for name, returned := range map[string]error{"another incarnation": store.ErrIncarnation, "ended": worker.ErrTransactionEnded} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			c := &ledger{name: "c", before: func(context.Context, *sql.Tx, store.PersistedEvent) error {
				return fmt.Errorf("my own worker: %w", returned)
			}}
			err := start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(2)).result(t)
			if !errors.Is(err, worker.ErrConsecutiveFailures) || !strings.Contains(err.Error(), "2 in a row") {
				t.Errorf("Start: %v", err)
			}
		})
	}
}

// A handler that closes the connection of its batch waits for itself, until
// BatchTimeout ends both. The error says so, and not that it was slow.
func TestHandlerThatClosesItsConnection(t *testing.T) {
	t.Parallel()
	for name, closes := range map[string]bool{"closes": true, "is slow": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			c := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, _ store.PersistedEvent) error {
				if conn, _ := consumer.Conn(ctx); closes {
					return conn.Close()
				}
				_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
				return err
			}}
			err := start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(1), worker.WithBatchTimeout(time.Second)).result(t)
			if !errors.Is(err, worker.ErrConsecutiveFailures) || !strings.Contains(err.Error(), "longer than BatchTimeout (1s)") ||
				strings.Contains(err.Error(), "the handler closed the connection of consumer.Conn") != closes {
				t.Errorf("Start: %v", err)
			}
		})
	}
}

// A handler that leaves a transaction open keeps the connection from everybody. The worker ends, and
// says so, also if pgxtx.In has used the connection and given it back.
func TestHandlerThatKeepsItsConnection(t *testing.T) {
	t.Parallel()
	for name, uses := range map[string]func(pgx.Tx) error{"at once": nil, "after pgxtx.In": func(pgx.Tx) error { return nil }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			var kept *sql.Tx
			c := &ledger{name: "c", before: func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) (err error) {
				if uses != nil {
					if err := pgxtx.In(ctx, uses); err != nil {
						return err
					}
				}
				conn, _ := consumer.Conn(ctx)
				kept, err = conn.BeginTx(context.WithoutCancel(ctx), nil)
				return err
			}}
			err := start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(1)).result(t)
			if err == nil || !strings.Contains(err.Error(), "left a transaction open") {
				t.Errorf("Start: %v", err)
			}
			_ = kept.Rollback()
		})
	}
}

// An observer that ends the goroutine in which it is called ends no part of the worker.
func TestObserverThatCallsGoexit(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	panics := make(chan observe.HookPanicked, 100)
	start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithObserver(
		observe.On(func(observe.BatchDone) { runtime.Goexit() }), observe.On(func(observe.LeadershipChanged) { runtime.Goexit() }),
		observe.On(func(p observe.HookPanicked) { panics <- p })))
	hooks := map[string]string{}
	for range 2 {
		p := <-panics
		hooks[p.Hook] = p.Panic
	}
	if want := "it called runtime.Goexit"; hooks["BatchDone"] != want || hooks["LeadershipChanged"] != want {
		t.Errorf("reported %v", hooks)
	}
	appendN(t, d.DB, "Order", "2", 1)
	awaitHandled(t, d.DB, "c", 1, 2)
}
