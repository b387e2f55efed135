package workertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/workertest"
)

// partitioned is a counter in partitions.
type partitioned struct {
	counter
	demand consumer.Partitions
}

func (p *partitioned) Partitions() consumer.Partitions { return p.demand }

// bulkPartitioned handles batches.
type bulkPartitioned struct{ partitioned }

func (p *bulkPartitioned) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	for _, e := range events {
		if err := p.Handle(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

// A consumer in partitions handles each of its events once, in its partitions.
func TestCatchUpInPartitions(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	var inParts atomic.Bool
	see := func(ctx context.Context, _ *sql.Tx, _ store.PersistedEvent) error {
		if i, _ := consumer.Info(ctx); i.Partition != "" {
			inParts.Store(true)
		}
		return nil
	}
	demand := consumer.Partitions{Count: 4}
	all := []consumer.Consumer{
		&partitioned{counter{name: "c", before: see}, demand},
		&bulkPartitioned{partitioned{counter{name: "b", before: see}, demand}},
	}
	if err := catchUp(t, d.DB, all); err != nil {
		t.Fatal(err)
	}
	for rounds := 1; !inParts.Load(); rounds++ {
		for i := range 20 {
			appendEvents(t, d.DB, event("Order", fmt.Sprint("a", i)))
		}
		if err := catchUp(t, d.DB, all); err != nil {
			t.Fatal(err)
		}
		var n, want int
		if err := d.DB.QueryRowContext(t.Context(), `SELECT sum(n), (SELECT 2 * count(*) FROM events) FROM counts`).Scan(&n, &want); err != nil || n != want {
			t.Fatalf("%d calls, want %d: %v", n, want, err)
		}
		if rounds == 50 {
			t.Fatal("nothing was handled in partitions")
		}
	}
}

func TestPartitionsAreChecked(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	c := &partitioned{counter{name: "c"}, consumer.Partitions{Count: 300}}
	given := []store.Event{event("Order", "a")}
	if err := workertest.Handle(t.Context(), d.DB, c, given, nil); err == nil || !strings.Contains(err.Error(), "300") {
		t.Errorf("Handle: %v", err)
	}
	if err := catchUp(t, d.DB, []consumer.Consumer{c}); !errors.Is(err, worker.ErrInvalidConfig) {
		t.Errorf("CatchUp: %v", err)
	}
	var calls int
	c.demand = consumer.Partitions{Count: 3, Key: consumer.ByKey("calls", func(store.PersistedEvent) string {
		calls++
		return fmt.Sprint(calls)
	})}
	if err := workertest.Handle(t.Context(), d.DB, c, given, nil); err == nil || !strings.Contains(err.Error(), "calls") || calls != 2 {
		t.Errorf("a key that is not pure, called %d times: %v", calls, err)
	}
	c.demand.Key = consumer.ByKey("id", func(e store.PersistedEvent) string { return e.AggregateID })
	if err := workertest.Handle(t.Context(), d.DB, c, given, nil); err != nil {
		t.Error(err)
	}
}
