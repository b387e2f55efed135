package e2e

import (
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// The sequence has jumped. That costs a consumer of some types as little as one
// of all: a few statements, and one row of the audit for the gap, or two.
func TestJumpOfTheSequence(t *testing.T) {
	t.Parallel()
	const jump = int64(10_000_000_000_000)
	d := newLog(t)
	appendN(t, d.DB, "Order", "1", 1)
	appendN(t, d.DB, "Invoice", "1", 1)
	d.Exec(t, `SELECT setval('events_global_position_seq', $1::bigint)`, jump)
	appendN(t, d.DB, "Invoice", "1", 1)
	appendN(t, d.DB, "Order", "1", 1)
	counts := &counter{table: "tally"}
	start(t, counts.open(t, d), []consumer.Consumer{&ledger{name: "all"}, &scopedLedger{ledger{name: "some", types: []string{"Order"}}}}, worker.WithBatchSize(10))
	awaitHandled(t, d.DB, "all", 1, 2, jump+1, jump+2)
	awaitHandled(t, d.DB, "some", 1, jump+2)
	for _, consumer := range []string{"all", "some"} {
		var rows, missing, first, last int64
		if err := d.DB.QueryRow(`SELECT count(*), sum(missing), min(gap_position), max(gap_end) FROM consumer_gap_skips WHERE consumer_name = $1 AND state = 'void'`, consumer).Scan(&rows, &missing, &first, &last); err != nil {
			t.Fatal(err)
		}
		if rows > 2 || missing != jump-2 || first != 3 || last != jump {
			t.Errorf("%s: %d rows of the audit for %d positions from %d to %d", consumer, rows, missing, first, last)
		}
	}
	if n := counts.n.Load(); n > 6 {
		t.Errorf("it was counted %d times what is missing", n)
	}
}
