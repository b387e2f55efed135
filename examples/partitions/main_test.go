package main

import (
	"fmt"
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
	"github.com/pgfrontier/worker/workertest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// The consumer is split while it runs. Its handler fails at an event that comes twice or out
// of order.
func TestPartitions(t *testing.T) {
	p := program.Start(t, []string{"DATABASE_URL=" + pgtest.Server(t).URL("")})
	p.Await(t, `^an operator fixes 8 parts$`)
	if handled := p.Await(t, `^parts: 8, events: (\d+) of 1200$`)[0]; handled == "1200" {
		t.Error("it was split when all was done")
	}
	p.Await(t, `^parts: 8, events: 1200 of 1200$`)
	p.Interrupt(t)
}

// Neither splits and merges nor crashes change the points. Verify recomputes the same ones.
func TestPointsUnderFaults(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE points (customer TEXT PRIMARY KEY, events BIGINT NOT NULL)`)
	o := workertest.StormOptions{Model: []string{`SELECT * FROM points`}, Limit: pgtest.Patience}
	for i := range 20 {
		o.Events = append(o.Events, store.Event{AggregateType: "Customer", AggregateID: fmt.Sprint("customer-", i%10), EventType: "PointsEarned"})
	}
	events := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	if err := workertest.Storm(t.Context(), d.DB, events, func() consumer.Consumer { return Points{} }, o); err != nil {
		t.Fatal(err)
	}
	operator, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	v := ops.Verification{Consumer: Points{}, Log: events, AggregateType: "Customer", Rows: `SELECT * FROM points WHERE customer = $1`}
	if s, err := operator.VerifySample(t.Context(), v, 20); err != nil || s.Aggregates == 0 || len(s.Wrong) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
