package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// version is a version of a projection. Its effect outside of its table is a row of acted.
type version struct {
	name       string
	partitions int
	client     *jobs.Client
}

func (v version) Name() string { return v.name }

func (v version) Partitions() consumer.Partitions { return consumer.Partitions{Count: v.partitions} }

func (v version) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO `+v.name+` (position) VALUES ($1)`, e.GlobalPosition); err != nil {
		return err
	}
	job, err := v.client.EnqueueFor(ctx, tx, e, welcome{})
	if err != nil {
		return err
	}
	if d, _ := consumer.Info(ctx); d.Replay {
		if d.Shadow && (!job.Existing || job.ID != 0) {
			return errors.New("a shadow has enqueued a job")
		}
		return nil
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO acted (position, version) VALUES ($1, $2)`, e.GlobalPosition, v.name)
	return err
}

// Two versions of a projection run under load, and are switched again and again. Each event is in
// the table of both, and has its effect once. Transactions are open over a switch, and sessions of
// the workers are cut off.
func TestSwitchUnderLoad(t *testing.T) {
	t.Parallel()
	switches := 5
	if tier.IsLong() {
		switches = 100
	}
	for _, parts := range []int{1, 3} {
		t.Run(fmt.Sprint("old version in parts ", parts), func(t *testing.T) {
			t.Parallel()
			d := newLog(t)
			if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
				t.Fatal(err)
			}
			d.Exec(t, `CREATE TABLE v1 (position BIGINT PRIMARY KEY)`)
			d.Exec(t, `CREATE TABLE v2 (position BIGINT PRIMARY KEY)`)
			d.Exec(t, `CREATE TABLE acted (position BIGINT NOT NULL, version TEXT NOT NULL)`)
			d.Exec(t, `CREATE VIEW totals AS SELECT * FROM v1`)
			db := d.OpenSet(t, "application_name", "versions")
			o, err := ops.New(d.DB)
			if err != nil {
				t.Fatal(err)
			}
			client := jobs.NewClient(db)
			options := []worker.Option{worker.WithBatchSize(20), worker.WithStaleGapThreshold(30 * time.Millisecond)}
			stop := load(t, d.DB, 10)
			start(t, db, []consumer.Consumer{version{"v1", parts, client}}, options...)
			awaitRows(t, d.DB, "the old version to run", fmt.Sprintf(`SELECT count(*) = %d FROM consumer_checkpoints WHERE consumer_name ~ '^v1' AND split_at IS NULL AND last_position > 0`, parts))
			if err := o.Shadow(t.Context(), "v2", byAnn); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				start(t, db, []consumer.Consumer{version{"v1", parts, client}, version{"v2", 1, client}}, options...)
			}
			awaitRows(t, d.DB, "the new version to run", `SELECT last_position > 0 FROM consumer_checkpoints WHERE consumer_name = 'v2'`)
			from, to := "v1", "v2"
			for i := range switches {
				late := beginAppend(t, d.DB, "Order", fmt.Sprint("late", i), 1)
				defer func() { _ = late.Rollback() }() // a no-op after the commit
				if i%3 == 2 {
					d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'versions'`)
				}
				if err := o.Switch(t.Context(), from, to, byAnn, func(ctx context.Context, tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, `CREATE OR REPLACE VIEW totals AS SELECT * FROM `+to)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				commit(t, late)
				acted := one[int](t, d.DB, `SELECT count(*) FROM acted WHERE version = $1`, to)
				await(t, "an effect of the version that has them now", func() bool { return one[int](t, d.DB, `SELECT count(*) FROM acted WHERE version = $1`, to) > acted })
				from, to = to, from
			}
			stop()
			for _, table := range []string{"v1", "v2", "acted"} {
				await(t, "every event to be in "+table, func() bool {
					return one[int](t, d.DB, `SELECT count(*) FROM events WHERE global_position NOT IN (SELECT position FROM `+table+`)`) == 0
				})
			}
			if found, err := o.Compare(t.Context(), ops.Comparison{Old: "v1", New: "v2", OldRows: `TABLE v1`, NewRows: `TABLE v2`}); err != nil || len(found.OnlyOld)+len(found.OnlyNew) > 0 {
				t.Errorf("compared: %+v, %v", found, err)
			}
			if n := one[int](t, d.DB, `SELECT count(*) - count(DISTINCT position) FROM acted`); n != 0 {
				t.Errorf("%d effects were had twice", n)
			}
			if jobs, all := one[int](t, d.DB, `SELECT count(*) FROM jobs`), one[int](t, d.DB, `SELECT count(*) FROM events`); jobs != all {
				t.Errorf("%d jobs for %d events", jobs, all)
			}
			if n := one[int](t, d.DB, `SELECT count(DISTINCT version) FROM acted`); n != 2 {
				t.Errorf("%d versions had effects", n)
			}
		})
	}
}

// projected is a version of a projection.
type projected struct {
	*ledger
	of string
}

func (p projected) Projection() string { return p.of }

// WaitFor with the name of a projection waits for the version that is in use, also for callers that
// wait while a Switch exchanges the versions.
func TestWaitForAProjection(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	v1, v2 := projected{&ledger{name: "v1"}, "totals"}, projected{&ledger{name: "totals"}, "totals"}
	appendN(t, d.DB, "Order", "1", 3)
	old := start(t, d.DB, []consumer.Consumer{v1})
	waiter := worker.NewWaiter(d.DB)
	reached := func(position int64, version string) {
		t.Helper()
		for i, wait := range []func(context.Context, string, int64) error{old.WaitFor, waiter.WaitFor} {
			if err := wait(t.Context(), "totals", position); err != nil {
				t.Fatalf("waiter %d: %v", i, err)
			}
		}
		if n := len(handled(t, d.DB, version)); int64(n) < position {
			t.Fatalf("%s has handled %d events of %d", version, n, position)
		}
	}
	reached(3, "v1")
	start(t, d.DB, []consumer.Consumer{v2})
	awaitRows(t, d.DB, "the next version to handle the events", `SELECT count(*) = 1 FROM consumer_checkpoints WHERE consumer_name = 'totals' AND effects <> '[]' AND last_position = 3`)
	if err := o.Pause(t.Context(), "totals", byAnn); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 1)
	reached(4, "v1")
	if err := o.Pause(t.Context(), "v1", byAnn); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 1)
	ended := make(chan error, 2)
	for _, wait := range []func(context.Context, string, int64) error{old.WaitFor, waiter.WaitFor} {
		go func() { ended <- wait(t.Context(), "totals", 5) }()
	}
	awaitLook(t, old, "totals", 5, `paused at position 4 by "ann"`)
	if err := o.Switch(t.Context(), "v1", "totals", byAnn, nil); err != nil {
		t.Fatal(err)
	}
	awaitLook(t, old, "totals", 5, "paused at position 3")
	if err := o.Resume(t.Context(), "totals", byAnn); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	reached(5, "totals")
	d.Exec(t, `UPDATE consumer_checkpoints SET scope = '{"projection": "lists"}' WHERE consumer_name = 'v1'`)
	if err := o.Switch(t.Context(), "totals", "v1", byAnn, nil); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), `"lists"`) {
		t.Errorf("a version of another projection: %v", err)
	}
}

// The next version of a projection is a shadow, also if the row of the version in use records no
// projection yet, and if an operator has let it begin.
func TestNextVersionIsAShadow(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 3)
	old := start(t, d.DB, []consumer.Consumer{&ledger{name: "v1"}})
	awaitHandled(t, d.DB, "v1", 1, 2, 3)
	if err := o.Begin(t.Context(), "v3", 0, byAnn); err != nil {
		t.Fatal(err)
	}
	old.end(t)
	w := start(t, d.DB, []consumer.Consumer{projected{&ledger{name: "v3"}, "totals"}, projected{&ledger{name: "v2"}, "totals"}, projected{&ledger{name: "v1"}, "totals"}})
	awaitHandled(t, d.DB, "v2", 1, 2, 3)
	awaitHandled(t, d.DB, "v3", 1, 2, 3)
	var shadows string
	if err := d.DB.QueryRow(`SELECT string_agg(consumer_name, ' ' ORDER BY consumer_name) FROM consumer_checkpoints WHERE effects = $1::jsonb`, delivered.Shadow().String()).Scan(&shadows); err != nil || shadows != "v2 v3" {
		t.Errorf("the shadows are %s, %v", shadows, err)
	}
	if err := w.WaitFor(t.Context(), "totals", 3); err != nil {
		t.Error(err)
	}
	w.end(t)
	d.Exec(t, `DELETE FROM worker_nodes`)
	if err := o.Retire(t.Context(), "v1", byAnn); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), `"v2" is a shadow`) {
		t.Errorf("retire the version in use: %v", err)
	}
	for _, name := range []string{"v2", "v3", "v1"} {
		if err := o.Retire(t.Context(), name, byAnn); err != nil {
			t.Errorf("retire %s: %v", name, err)
		}
	}
}
