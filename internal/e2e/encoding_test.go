package e2e

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// What an error says is stored as its escapes where the database's encoding does not hold it:
// a consumer would stand still otherwise, whatever its policy.
func TestErrorThatTheEncodingDoesNotHold(t *testing.T) {
	t.Parallel()
	const said, stored = "caf\u00e9: \u5931\u6557 \U0001f600", `caf\u00e9: \u5931\u6557 \U0001f600`
	d := pgtest.Latin1(t)
	cfg := migrations.DefaultConfig()
	if err := migrations.Apply(t.Context(), d.DB, &cfg); err != nil {
		t.Fatal(err)
	}
	withLedger(t, d)
	var mended atomic.Bool
	bad := func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == "bad" && !mended.Load() {
			return errors.New(said)
		}
		return nil
	}
	keyed := &partitioned{ledger{name: "keyed", before: bad}, consumer.Partitions{Count: 1, Key: consumer.ByKey("word", func(store.PersistedEvent) string { return said })}}
	start(t, d.DB, []consumer.Consumer{&ledger{name: "buries", before: bad}, keyed}, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))
	start(t, d.DB, []consumer.Consumer{&ledger{name: "pauses", before: bad}}, worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(1))
	appendN(t, d.DB, "Order", "bad", 1)
	appendN(t, d.DB, "Order", "good", 1)
	awaitHandled(t, d.DB, "buries", 2)
	attempts := func() int {
		return one[int](t, d.DB, `SELECT attempts FROM consumer_dead_letters WHERE consumer_name = 'buries' AND right(error, length($1::text)) = $1::text`, stored)
	}
	await(t, "all of the key to follow the first", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM consumer_dead_letters WHERE consumer_name = 'keyed' AND order_key = $1::text`, stored) == 2
	})
	before := attempts()
	await(t, "the consumer to be paused", func() bool {
		return one[string](t, d.DB, `SELECT coalesce(max(paused_reason), '') FROM consumer_checkpoints WHERE consumer_name = 'pauses'`) != ""
	})
	o := operator(t, d)
	if err := o.RetryDeadLetters(t.Context(), "buries", 1, by); err != nil {
		t.Fatal(err)
	}
	await(t, "the dead letter to fail again", func() bool { return attempts() > before })
	mended.Store(true)
	if err := o.RetryDeadLetters(t.Context(), "buries", 1, by); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "buries", 2, 1)
}
