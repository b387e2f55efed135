package worker_test

import (
	"testing"
	"time"

	"github.com/pgfrontier/worker"
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
