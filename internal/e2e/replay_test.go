package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

var byAnn = ops.By{Operator: "ann", Reason: "rebuild"}

// spoken are the calls of a batch consumer: how many events, and whether they are
// replayed.
type spoken struct {
	mu    sync.Mutex
	calls []string
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls, " ")
}

func (s *spoken) middleware(next worker.HandleFunc) worker.HandleFunc {
	return func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
		of, _ := consumer.Info(ctx)
		call := fmt.Sprintf("%d-%d", events[0].GlobalPosition, events[len(events)-1].GlobalPosition)
		if of.Replay {
			call += "r"
		}
		err := next(ctx, tx, events)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, call)
		return err
	}
}

// A batch that goes over the border is given to the handler in two calls, in one
// transaction.
func TestBatchIsCutAtTheBorder(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 10)
	calls := &spoken{}
	b := &bulkLedger{name: "c"}
	first := start(t, d.DB, []consumer.Consumer{b}, worker.WithHandleMiddleware(calls.middleware))
	awaitHandled(t, d.DB, "c", upTo(10)...)
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 3)
	o := operator(t, d)
	if err := errors.Join(o.Pause(t.Context(), "c", byAnn), o.Reset(t.Context(), "c", 3, byAnn)); err != nil {
		t.Fatal(err)
	}
	second := start(t, d.DB, []consumer.Consumer{b}, worker.WithHandleMiddleware(calls.middleware))
	await(t, "the new events to be safe, so that one batch takes all", func() bool { return second.Status().Safe >= 13 })
	if err := o.Resume(t.Context(), "c", byAnn); err != nil {
		t.Fatal(err)
	}
	awaitHandled(t, d.DB, "c", append(upTo(10), 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)...)
	if got := calls.String(); got != "1-10 4-10r 11-13" {
		t.Errorf("the calls were %s", got)
	}
	if n := one[int](t, d.DB, `SELECT count(DISTINCT xmin::text) FROM ledger WHERE id > 10`); n != 1 {
		t.Errorf("they were %d transactions", n)
	}
}

// A handler that commits by itself what was an exception: the checkpoint is set back, and the
// exception is one again.
func TestRepairBringsExceptionsBack(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 5)
	commits := false
	l := &ledger{name: "c", before: func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if commits && e.GlobalPosition == 3 {
			_, err := tx.ExecContext(ctx, `COMMIT`)
			return err
		}
		return nil
	}}
	first := start(t, d.DB, []consumer.Consumer{l})
	awaitHandled(t, d.DB, "c", upTo(5)...)
	first.Stop()
	if err := first.result(t); err != nil {
		t.Fatal(err)
	}
	const had = `[{"last": 4095, "after": 5, "first": 0, "except": [{"last": 1, "first": 1}, {"last": 4, "first": 3}]}]`
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 0, revision = revision + 1, effects = $1::jsonb`, had)
	d.Exec(t, `DELETE FROM ledger`)
	commits = true
	second := start(t, d.DB, []consumer.Consumer{l})
	if err := second.result(t); err == nil || !strings.Contains(err.Error(), "set back from 5 to 2") {
		t.Fatalf("Start returned %v", err)
	}
	if got := one[string](t, d.DB, `SELECT effects::text FROM consumer_checkpoints`); got != `[{"last": 4095, "after": 5, "first": 0, "except": [{"last": 4, "first": 3}]}]` {
		t.Errorf("the effects are %s", got)
	}
	commits = false
	calls := &spoken{}
	start(t, d.DB, []consumer.Consumer{l}, worker.WithHandleMiddleware(calls.middleware))
	await(t, "the rest", func() bool { return checkpoint(t, d.DB, "c") == 5 })
	if got := calls.String(); got != "3-3 4-4 5-5r" {
		t.Errorf("the calls were %s", got)
	}
}

// Parts of a consumer inherit what it has had, are set back one by one, and are merged again:
// each effect is had once.
func TestEffectsOnceOverPartitions(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	for i := range 40 {
		appendN(t, d.DB, "Order", fmt.Sprint(i%10), 1)
	}
	d.Exec(t, `ALTER TABLE ledger ADD COLUMN replay BOOLEAN NOT NULL DEFAULT false`)
	c := func(n int) []consumer.Consumer { return []consumer.Consumer{&replayed{n: n}} }
	single := start(t, d.DB, c(1))
	await(t, "all events", func() bool { return checkpoint(t, d.DB, "c") == 40 })
	single.Stop()
	if err := single.result(t); err != nil {
		t.Fatal(err)
	}
	o := operator(t, d)
	if err := errors.Join(o.Pause(t.Context(), "c", byAnn), o.Reset(t.Context(), "c", 10, byAnn)); err != nil {
		t.Fatal(err)
	}
	parted := start(t, d.DB, c(3))
	layout := `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL AND last_position >= $1`
	await(t, "three parts", func() bool { return one[int](t, d.DB, layout, 10) == 3 })
	if err := o.Resume(t.Context(), "c", byAnn); err != nil {
		t.Fatal(err)
	}
	await(t, "three parts that have all", func() bool { return one[int](t, d.DB, layout, 40) == 3 })
	appendN(t, d.DB, "Order", "3", 5)
	appendN(t, d.DB, "Order", "8", 5)
	await(t, "three parts that have the new ones", func() bool { return one[int](t, d.DB, layout, 50) == 3 })
	unit := one[string](t, d.DB, `SELECT max(consumer_name) FROM consumer_checkpoints`)
	if err := o.Reset(t.Context(), unit, 20, byAnn); err != nil {
		t.Fatal(err)
	}
	parted.Stop()
	if err := parted.result(t); err != nil {
		t.Fatal(err)
	}
	start(t, d.DB, c(1))
	await(t, "one part again", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE last_position >= 50 AND split_at IS NULL`) == 1 && checkpoint(t, d.DB, "c") == 50
	})
	if n := one[int](t, d.DB, `SELECT count(DISTINCT (first, last, after)) FROM consumer_checkpoints, jsonb_to_recordset(effects) AS b(first int, last int, after bigint)`); n < 2 {
		t.Errorf("the borders are %s: too few for this test", one[string](t, d.DB, `SELECT effects::text FROM consumer_checkpoints WHERE consumer_name = 'c'`))
	}
	appendN(t, d.DB, "Order", "8", 5)
	await(t, "the last events", func() bool { return checkpoint(t, d.DB, "c") == 55 })
	if err := o.Reset(t.Context(), "c", 0, byAnn); err != nil {
		t.Fatal(err)
	}
	await(t, "all of them again", func() bool {
		return one[int](t, d.DB, `SELECT count(*) FROM ledger WHERE position = 55`) == 2
	})
	if n := one[int](t, d.DB, `SELECT count(*) FROM (SELECT FROM ledger WHERE NOT replay GROUP BY position HAVING count(*) = 1) AS once`); n != 55 {
		t.Errorf("%d of 55 effects were had once", n)
	}
	if n := one[int](t, d.DB, `SELECT count(*) FROM ledger WHERE NOT replay`); n != 55 {
		t.Errorf("%d effects were had", n)
	}
}

// replayed is a consumer in partitions that writes down what is replayed.
type replayed struct{ n int }

func (*replayed) Name() string                      { return "c" }
func (r *replayed) Partitions() consumer.Partitions { return consumer.Partitions{Count: r.n} }

func (*replayed) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	of, _ := consumer.Info(ctx)
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (consumer, position, replay) VALUES ('c', $1, $2)`, e.GlobalPosition, of.Replay)
	return err
}

// A key that panics where parts with different borders were merged: nobody knows whether the
// consumer has had the event. That waits for a key that works, and is no failure of the handler.
func TestKeyThatPanicsAtBorders(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	for i := range 10 {
		appendN(t, d.DB, "Order", fmt.Sprint(i), 1)
	}
	d.Exec(t, `ALTER TABLE ledger ADD COLUMN replay BOOLEAN NOT NULL DEFAULT false`)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, effects) VALUES ('c', 0,
		'[{"first": 0, "last": 2047, "key": "k", "after": 5}, {"first": 2048, "last": 4095, "key": "k", "after": 9}]')`)
	var works atomic.Bool
	retries := make(chan observe.Retrying, 1)
	c := &keyed{key: func(e store.PersistedEvent) string {
		if !works.Load() {
			panic("no key")
		}
		return e.AggregateID
	}}
	start(t, d.DB, []consumer.Consumer{c}, worker.WithMaxConsecutiveFailures(2), worker.WithObserver(observe.On(func(r observe.Retrying) {
		select {
		case retries <- r:
		default:
		}
	}),
		observe.On(func(f observe.ConsumerFailed) {
			t.Errorf("the consumer has failed: %v", f.Err)
		})))
	for range 3 {
		select {
		case r := <-retries:
			if r.Condition != observe.ConditionKey || r.ByHandler {
				t.Errorf("it is tried again because of %+v", r)
			}
		case <-time.After(pgtest.Patience):
			t.Fatal("waited in vain for another attempt")
		}
	}
	works.Store(true)
	await(t, "all events", func() bool { return checkpoint(t, d.DB, "c") == 10 })
}

// keyed is replayed with a key of its own.
type keyed struct {
	replayed
	key func(store.PersistedEvent) string
}

func (k *keyed) Partitions() consumer.Partitions {
	return consumer.Partitions{Count: 1, Key: consumer.ByKey("k", k.key)}
}
