package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// named is a consumer in partitions under any name. Its ledger is that of "c".
type named struct {
	*partitioned
	as string
}

func (n named) Name() string { return n.as }

// welcome is a job for an event.
type welcome struct{}

func (welcome) Kind() string { return "welcome" }

// oldOrNew returns three partitions of a consumer that enqueues a job for each event, and refuses
// an aggregate until it is mended.
func oldOrNew(db *sql.DB, name string, mended *atomic.Bool) []consumer.Consumer {
	client := jobs.NewClient(db)
	p := inPartitions(3)
	p.before = func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == "a3" && !mended.Load() {
			return errRefused
		}
		_, err := client.EnqueueFor(ctx, tx, e, welcome{})
		return err
	}
	return []consumer.Consumer{named{p, name}}
}

// A renamed consumer continues where it was: over both names each event is handled once, with one
// job. It has partitions, positions in doubt and dead letters when it is renamed. A worker with the
// old name handles nothing.
func TestRenamedConsumerContinues(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "lib/pq"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
				t.Fatal(err)
			}
			db := open(t, d, driver)
			o, err := ops.New(db)
			if err != nil {
				t.Fatal(err)
			}
			var mended atomic.Bool
			run := func(name string) *running {
				return start(t, db, oldOrNew(db, name, &mended), worker.WithStaleGapThreshold(30*time.Millisecond), worker.WithBatchSize(20),
					worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))
			}
			stop := load(t, d.DB, 10)
			before := []*running{run("old"), run("old")}
			awaitRows(t, d.DB, "three partitions", `SELECT count(*) = 3 FROM consumer_checkpoints WHERE consumer_name LIKE 'old#%' AND last_position > 0`)
			late := beginAppend(t, d.DB, "Order", "late", 1)
			awaitRows(t, d.DB, "a position in doubt", `SELECT count(DISTINCT consumer_name) = 3 FROM consumer_gap_skips WHERE state = 'open'`)
			awaitRows(t, d.DB, "dead letters", `SELECT count(*) > 1 FROM consumer_dead_letters`)
			for _, w := range before {
				w.Stop()
				if err := w.result(t); err != nil {
					t.Fatal(err)
				}
			}
			if err := o.Rename(t.Context(), "old", "new", byAnn); err != nil {
				t.Fatal(err)
			}
			if err := worker.NewWaiter(db).WaitFor(t.Context(), "old", 1); !errors.Is(err, worker.ErrNoConsumer) || !strings.Contains(err.Error(), "renamed to new") {
				t.Errorf("who waits for the old name is told %v", err)
			}
			for _, table := range []string{"consumer_dead_letters", "consumer_gap_skips", "consumer_assignments"} {
				if n := one[int](t, d.DB, `SELECT count(*) FROM `+table+` WHERE consumer_name LIKE 'old%'`); n > 0 {
					t.Errorf("%d rows of %s have the old name", n, table)
				}
			}
			rest := one[int](t, d.DB, `SELECT count(*) FROM events`) - one[int](t, d.DB, `SELECT count(*) FROM ledger`)
			if rest < 1 {
				t.Fatalf("%d events are left", rest)
			}

			mended.Store(true)
			stale := run("old")
			await(t, "the old name to be known as paused", func() bool {
				for _, c := range stale.Status().Consumers {
					if c.Paused != nil && strings.HasPrefix(c.Paused.Reason, "renamed to new") {
						return true
					}
				}
				return false
			})
			run("new")
			after := run("new")
			commit(t, late)
			if _, err := o.RetryDeadLettersWhere(t.Context(), "new", ops.DeadLetterFilter{}, 10_000, byAnn); err != nil {
				t.Fatal(err)
			}
			stop()
			awaitOnce(t, d.DB, "aggregate_id")
			if err := after.WaitFor(t.Context(), "new", one[int64](t, d.DB, `SELECT max(global_position) FROM events`)); err != nil {
				t.Error(err)
			}
			all := one[int](t, d.DB, `SELECT count(*) FROM events`)
			if n := one[int](t, d.DB, `SELECT count(*) FROM jobs`); n != all {
				t.Errorf("%d jobs for %d events", n, all)
			}
			if err := o.Reset(t.Context(), "new", 0, byAnn); err != nil {
				t.Fatal(err)
			}
			awaitRows(t, d.DB, "all events again", fmt.Sprintf(`SELECT count(*) = %d FROM ledger`, 2*all))
			if n := one[int](t, d.DB, `SELECT count(*) FROM jobs`); n != all {
				t.Errorf("%d jobs for %d events after a reset", n, all)
			}
		})
	}
}

// awaitRows waits until a query returns true.
func awaitRows(t *testing.T, db *sql.DB, what, query string) {
	t.Helper()
	await(t, what, func() bool { return one[bool](t, db, query) })
}
