package e2e

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// txLog is a log of a user's, whose readers want a transaction.
type txLog struct{ s *storepostgres.Store }

func (l txLog) ReadEvents(ctx context.Context, tx *sql.Tx, after int64, limit int) ([]store.PersistedEvent, error) {
	return l.s.ReadEvents(ctx, tx, after, limit)
}

func (l txLog) GetLatestGlobalPosition(ctx context.Context, tx *sql.Tx) (int64, error) {
	return l.s.GetLatestGlobalPosition(ctx, tx)
}

type namedTxLog struct{ txLog }

func (namedTxLog) PositionColumn() (table, column string) { return "events", "global_position" }

// A worker reads a log whose readers want a transaction, whatever it reads: what is new, what
// follows at once, a dead letter that is tried again.
func TestLogWhoseReadersWantATransaction(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]store.TxLog{"named": namedTxLog{txLog{newStore()}}, "unnamed": txLog{newStore()}} {
		t.Run(name, func(t *testing.T) {
			d := withLedger(t, pgtest.Alone(t))
			var mended atomic.Bool
			c := &ledger{name: "c", before: func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
				if e.AggregateID == "bad" && !mended.Load() {
					return errors.New("bad")
				}
				return nil
			}}
			w := worker.New(d.DB, store.FromTxLog(log), []consumer.Consumer{c, &scopedLedger{ledger{name: "scoped", types: []string{"Order"}}}},
				append(quick(), worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))...)
			runWorker(t, w)
			appendN(t, d.DB, "Order", "bad", 1)
			for range 3 {
				appendN(t, d.DB, "Order", "good", 1)
				head := one[int64](t, d.DB, `SELECT max(global_position) FROM events`)
				await(t, "both consumers to follow", func() bool {
					return one[int64](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE last_position >= $1::bigint`, head) == 2
				})
			}
			mended.Store(true)
			if err := operator(t, d).RetryDeadLetters(t.Context(), "c", 1, by); err != nil {
				t.Fatal(err)
			}
			awaitHandled(t, d.DB, "c", 2, 3, 4, 1)
		})
	}
}
