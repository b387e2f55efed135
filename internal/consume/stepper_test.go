package consume

import (
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// stepper is a worker with one consumer that a test runs step by step. Nothing runs by
// itself.
type stepper struct {
	*Worker
	loop *consumerLoop
}

// newLedgerStepper makes a log, and a worker whose consumer writes all of it into the
// ledger.
func newLedgerStepper(t *testing.T, opts ...option) (*pgtest.Database, *stepper) {
	t.Helper()
	d := pgtest.New(t)
	d.Exec(t, createLedger)
	return d, newStepper(t, d.DB, storepostgres.NewStore(nil), steppedConsumer{"all", nil, new(atomic.Bool)}, opts...)
}

// newStepper makes a worker and assigns the consumer to it.
func newStepper(t *testing.T, db *sql.DB, log store.Log, c consumer.Consumer, opts ...option) *stepper {
	t.Helper()
	w := newWorker(db, log, []consumer.Consumer{c}, opts...)
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.placer.first(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := &stepper{Worker: w, loop: newLoop(&w.shared, w.units[0])}
	t.Cleanup(func() { h.loop.reader.Close() })
	h.own(t)
	h.open(t)
	return h
}

// own assigns the consumer to this worker.
func (h *stepper) own(t *testing.T) {
	t.Helper()
	if _, err := h.db.Exec(`INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ($1::text, $2::uuid)
		ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id`, h.loop.unit.name, h.id.String()); err != nil {
		t.Fatal(err)
	}
}

// open opens a session of the frontier.
func (h *stepper) open(t *testing.T) {
	t.Helper()
	t.Cleanup(h.frontier.Close)
	if err := h.frontier.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// stepFrontier steps the frontier until done accepts its value.
func (h *stepper) stepFrontier(t *testing.T, what string, done func(v *frontier.Value) bool) {
	t.Helper()
	for deadline := time.Now().Add(pgtest.Patience); !done(h.frontier.Value()); {
		if time.Now().After(deadline) {
			t.Fatalf("stepped the frontier in vain for: %s; it is at %+v", what, *h.frontier.Value())
		}
		if err := h.frontier.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// stepFrontierTo steps the frontier until consumers may read up to a position.
func (h *stepper) stepFrontierTo(t *testing.T, position int64) {
	t.Helper()
	h.stepFrontier(t, "the position to be safe", func(v *frontier.Value) bool { return v.Safe >= position })
}

// handle runs batches of the loop until there is nothing to do.
func (h *stepper) handle(t *testing.T) {
	t.Helper()
	for {
		r, fatal := h.loop.step(t.Context(), t.Context())
		if fatal != nil || r.err != nil {
			t.Fatal(fatal, r.err)
		}
		if r.outcome == idle {
			return
		}
	}
}

// handleOnce begins a step of the loop.
func (h *stepper) handleOnce(t *testing.T) <-chan result {
	end := make(chan result, 1)
	go func() {
		r, fatal := h.loop.step(t.Context(), t.Context())
		if fatal != nil {
			r.err = fatal
		}
		end <- r
	}()
	return end
}

// awaitEnd waits for the end of a step.
func awaitEnd(t *testing.T, end <-chan result, want outcome) {
	t.Helper()
	select {
	case got := <-end:
		if got.outcome != want || got.err != nil {
			t.Fatalf("the step ended with %v, %v; want %v", got.outcome, got.err, want)
		}
	case <-time.After(pgtest.Patience):
		t.Fatal("waited in vain for the end of a step")
	}
}

// beginOne appends one event to an aggregate and leaves the transaction open.
func beginOne(t *testing.T, db *sql.DB, aggregate string) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	event := store.Event{AggregateType: "A", AggregateID: aggregate, EventType: "happened", EventID: uuid.New()}
	if _, err := storepostgres.NewStore(nil).Append(t.Context(), tx, store.Any(), []store.Event{event}); err != nil {
		t.Fatal(err)
	}
	return tx
}

// appendOne commits one event.
func appendOne(t *testing.T, db *sql.DB, aggregate string) {
	t.Helper()
	if err := beginOne(t, db, aggregate).Commit(); err != nil {
		t.Fatal(err)
	}
}
