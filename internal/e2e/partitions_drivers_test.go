package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// What splits, merges and operates on units goes over each driver in each of its
// modes, straight and through a transaction-pooling proxy: with a dead letter, a
// position in doubt, a pause, a skip and a reset.
func TestPartitionsOverEveryDriver(t *testing.T) {
	t.Parallel()
	straight := maps.Clone(pgtest.ThroughBouncer)
	maps.Copy(straight, pgtest.BrokenByBouncer)
	bounced := pgtest.ThroughBouncer
	if !tier.IsLong() { // the driver without a proxy that prepares, and one behind a proxy
		straight, bounced = only(straight, "pgx cache_statement"), only(bounced, "lib/pq binary_parameters=yes")
	}
	for name, open := range straight {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			partitionsOver(t, d.DB, open(t, d))
		})
	}
	for name, open := range bounced {
		t.Run("PgBouncer, "+name, func(t *testing.T) {
			d := newLog(t)
			partitionsOver(t, d.DB, open(t, d.Bounced(t, few)), leased()...)
		})
	}
}

// partitionsOver runs a worker and operators on db. What happened is read over
// another connection.
func partitionsOver(t *testing.T, direct, db *sql.DB, opts ...worker.Option) {
	t.Helper()
	by := ops.By{Operator: "ann", Reason: "a test"}
	o, err := ops.New(db)
	if err != nil {
		t.Fatal(err)
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var mended atomic.Bool
	c := inPartitions(1)
	c.before = func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == "bad" && !mended.Load() {
			return errRefused
		}
		return nil
	}
	late := beginAppend(t, direct, "Order", "late", 1)
	appendN(t, direct, "Order", "bad", 1)
	w := start(t, db, []consumer.Consumer{c}, append(opts, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1), worker.WithStaleGapThreshold(10*time.Millisecond))...)
	head := func() int64 { return one[int64](t, direct, `SELECT max(global_position) FROM events`) }
	allAt := func(position int64) {
		t.Helper()
		await(t, "all units to be there", func() bool {
			return one[int64](t, direct, `SELECT min(last_position) FROM consumer_checkpoints WHERE split_at IS NULL`) >= position
		})
	}
	awaitLayout(t, direct, 1)
	for i, n := range []int{4, 3, 1, 2} {
		do(o.Partition(t.Context(), "c", n, by))
		awaitLayout(t, direct, n)
		for k := range 8 {
			appendN(t, direct, "Order", fmt.Sprint("a", k), 1)
		}
		ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
		do(w.WaitFor(ctx, "c", head()))
		cancel()
		if i == 1 {
			do(late.Commit())
		}
	}
	if n := one[int](t, direct, `SELECT count(*) FROM consumer_dead_letters WHERE consumer_name LIKE 'c#%'`); n != 1 {
		t.Errorf("%d dead letters went with their unit", n)
	}
	mended.Store(true)
	do(o.RetryDeadLetters(t.Context(), "c", 2, by))
	awaitOnce(t, direct, "aggregate_id")

	allAt(head())
	do(o.Pause(t.Context(), "c", by))
	appendN(t, direct, "Order", "a1", 1)
	skipped := head()
	do(o.SkipEvent(t.Context(), "c", skipped, by))
	all, err := o.Consumers(t.Context())
	if err != nil || len(all) != 1 || len(all[0].Units) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	do(errors.Join(o.Resume(t.Context(), "c#000-7ff", by), o.Resume(t.Context(), "c", by)))
	allAt(skipped)
	if n := one[int](t, direct, `SELECT count(*) FROM ledger WHERE position = $1`, skipped); n > 0 {
		t.Error("the event that was skipped was handled")
	}
	do(o.Reset(t.Context(), "c", 10, by))
	allAt(skipped)
	if n := one[int](t, direct, `SELECT count(*) FROM events WHERE (SELECT count(*) FROM ledger WHERE position = global_position) <> CASE WHEN global_position <= 10 THEN 1 WHEN global_position < $1 THEN 2 ELSE 1 END`, skipped); n > 0 {
		t.Errorf("%d events were not handled once more after the reset", n)
	}
	do(o.Partition(t.Context(), "c", 0, by)) // as the code demands
	awaitLayout(t, direct, 1)
	w.Stop()
	do(w.result(t))
}

// only returns the opener of that name alone.
func only(openers map[string]pgtest.Opener, name string) map[string]pgtest.Opener {
	return map[string]pgtest.Opener{name: openers[name]}
}
