package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// A consumer at the head is placed when nothing below it can appear any more.
// Consumers that go on past a transaction in doubt do not make it so: the new
// one has no record of that doubt, and would never be given its events.
func TestConsumerAtTheHeadIsNotPlacedPastAnOpenTransaction(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	open := beginAppend(t, d.DB, "Order", "late", 1) // 1
	defer func() { _ = open.Rollback() }()
	appendN(t, d.DB, "Order", "1", 1) // 2
	consumers := []consumer.Consumer{&ledger{name: "all"}, &startingLedger{ledger{name: "head"}, consumer.AtHead()}}
	w := start(t, d.DB, consumers, worker.WithStaleGapThreshold(50*time.Millisecond))
	for head := int64(2); head < 30; head++ { // each a way through the whole worker, so there is time to place it
		if err := w.WaitFor(t.Context(), "all", head); err != nil {
			t.Fatal(err)
		}
		if at := checkpoint(t, d.DB, "head"); at >= 0 {
			t.Fatalf("placed at %d, while the transaction of position 1 is open", at)
		}
		appendN(t, d.DB, "Order", "1", 1)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	await(t, "the consumer to be placed", func() bool { return checkpoint(t, d.DB, "head") >= 2 })
	appendN(t, d.DB, "Order", "1", 1)
	head := latestPosition(t, d.DB)
	if err := w.WaitFor(t.Context(), "head", head); err != nil {
		t.Fatal(err)
	}
	if got := handled(t, d.DB, "head"); len(got) == 0 || got[len(got)-1] != head {
		t.Errorf("handled %v, want what was appended since, up to %d", got, head)
	}
}

// While a consumer waits to begin at the head, Status and the observer name the
// transaction that it waits for; the end of the wait is told once.
func TestConsumerThatWaitsToBeginAtTheHeadIsNamed(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	open := beginAppend(t, d.DB, "Order", "late", 1)
	defer func() { _ = open.Rollback() }()
	appendN(t, d.DB, "Order", "1", 1)
	waits, ends := make(chan observe.ConsumerWaiting, 10), make(chan observe.Recovered, 10)
	observer := worker.WithObserver(observe.On(func(w observe.ConsumerWaiting) { waits <- w }),
		observe.On(func(r observe.Recovered) {
			if r.Condition == observe.ConditionStart {
				ends <- r
			}
		}))
	w := start(t, d.DB, []consumer.Consumer{&startingLedger{ledger{name: "new"}, consumer.AtHead()}}, worker.WithStaleGapThreshold(50*time.Millisecond), observer)
	names := func(err error) bool {
		return err != nil && strings.Contains(err.Error(), `consumer "new" waits to begin at the head, position 2`) && strings.Contains(err.Error(), "pg_terminate_backend(")
	}
	await(t, "Status to name the transaction", func() bool { return names(statusOf(w.Worker, "new").LastError) })
	if told := <-waits; told.Consumer != "new" || told.Condition != observe.ConditionStart {
		t.Errorf("the observer was told %+v", told)
	}
	if err := open.Rollback(); err != nil {
		t.Fatal(err)
	}
	appendN(t, d.DB, "Order", "1", 1)
	if err := w.WaitFor(t.Context(), "new", latestPosition(t, d.DB)); err != nil {
		t.Fatal(err)
	}
	if end := <-ends; end.Consumer != "new" || !names(end.Err) {
		t.Errorf("the end that was told is %+v", end)
	}
	if err := statusOf(w.Worker, "new").LastError; err != nil || len(waits)+len(ends) > 0 {
		t.Errorf("afterwards the last error is %v; %d more waits and %d more ends were told", err, len(waits), len(ends))
	}
}
