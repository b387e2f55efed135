package e2e

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store/consumer"
)

// runUntil runs the consumer "c" until it is at a position.
func runUntil(t *testing.T, db *sql.DB, to int64) {
	t.Helper()
	r := start(t, db, []consumer.Consumer{&ledger{name: "c"}}, quick()...)
	awaitRows(t, db, "the events", fmt.Sprintf(`SELECT EXISTS (SELECT FROM consumer_checkpoints WHERE consumer_name = 'c' AND last_position >= %d)`, to))
	r.Stop()
	if err := r.result(t); err != nil {
		t.Fatal(err)
	}
}

// prove proves a consumer, and compares what is not proven with lines as "first-last events reason".
func prove(t *testing.T, db *sql.DB, name string, want ...string) *ops.Proof {
	t.Helper()
	o, err := ops.New(db)
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.Prove(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range p.Unproven {
		got = append(got, fmt.Sprintf("%d-%d %+d %s", u.First, u.Last, u.Events, u.Reason))
	}
	if len(got) != len(want) {
		t.Errorf("not proven: %q, want %q", got, want)
		return p
	}
	for i, line := range want {
		if !strings.HasPrefix(got[i], line) {
			t.Errorf("not proven: %q, want %q", got[i], line)
		}
	}
	return p
}

// A change of the checkpoint or of the log beside the workers is found, with the positions.
func TestProve(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	run := func(to int64) { t.Helper(); runUntil(t, d.DB, to) }
	appendN(t, d.DB, "Order", "a", 100)
	run(100)
	if p := prove(t, d.DB, "c"); p.From != 1 || p.To != 100 || p.Events != 100 || !p.Holds() {
		t.Errorf("%+v", p)
	}
	appendN(t, d.DB, "Order", "b", 10)
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 105 WHERE consumer_name = 'c'`)
	prove(t, d.DB, "c", "101-105 +0 passed without a receipt")
	run(110)
	p := prove(t, d.DB, "c", "101-105 +0 passed without a receipt")
	if p.Holds() || p.Events != 105 {
		t.Errorf("%+v", p)
	}
	d.Exec(t, `DELETE FROM events WHERE global_position = 42`)
	prove(t, d.DB, "c", "42-42 +1 the event was handled, and the log does not have it any more", "101-105 ")
	d.Exec(t, `DELETE FROM events WHERE global_position = 43`)
	prove(t, d.DB, "c", "1-110 +2 ", "101-105 ")
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 107 WHERE consumer_name = 'c'`)
	d.Exec(t, `DELETE FROM ledger WHERE position > 107`)
	prove(t, d.DB, "c", "1-110 ", "101-105 ", "108-110 +0 handled, and to be handled again")
	run(110)
	prove(t, d.DB, "c", "1-110 ", "101-105 ", "108-110 +0 passed twice")
}

// What operators do fails no proof, also one operation after the other before the next batch.
func TestProveAfterOperations(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	o, err := ops.New(d.DB)
	if err != nil {
		t.Fatal(err)
	}
	run := func(to int64) { t.Helper(); runUntil(t, d.DB, to) }
	do := func(errs ...error) {
		t.Helper()
		for i, err := range errs {
			if err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
		}
	}
	holds := func(when string, events int64) {
		t.Helper()
		p, err := o.Prove(t.Context(), "c", nil)
		if err != nil || !p.Holds() || p.Events != events {
			t.Fatalf("%s: %+v, %v", when, p, err)
		}
	}
	appendN(t, d.DB, "Order", "a", 10)
	run(10)
	appendN(t, d.DB, "Order", "b", 90)
	d.Exec(t, `INSERT INTO consumer_checkpoints_settled (log, settled)
		SELECT ('events_global_position_seq'::regclass::oid::bigint << 32) | pg_relation_filenode('events_global_position_seq')::bigint, 100
		ON CONFLICT (log) DO UPDATE SET settled = 100`)
	ctx := t.Context()
	do(o.SkipEvent(ctx, "c", 11, byAnn), o.SkipEvent(ctx, "c", 12, byAnn))
	holds("after two skips", 12)
	do(o.Reset(ctx, "c", 20, byAnn), o.Reset(ctx, "c", 30, byAnn))
	holds("after two resets forwards", 12)
	run(100)
	holds("after two resets forwards, and the rest", 82)
	do(o.Reset(ctx, "c", 50, byAnn), o.Reset(ctx, "c", 60, byAnn))
	holds("after a reset backwards and one forwards", 12)
	d.Exec(t, `DELETE FROM ledger WHERE position > 60`)
	run(100)
	holds("after all resets", 52)
	p, err := o.Prove(ctx, "c", nil)
	if err != nil || len(p.Unproven) != 1 || p.Unproven[0].First != 13 || p.Unproven[0].Last != 60 || p.Unproven[0].Operation == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	do(o.Reset(ctx, "c", 70, byAnn))
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 80 WHERE consumer_name = 'c'`)
	d.Exec(t, `DELETE FROM ledger WHERE position > 70`)
	run(100)
	if p, err := o.Prove(ctx, "c", nil); err != nil || p.Holds() {
		t.Errorf("a checkpoint raised after a reset: %+v, %v", p, err)
	}
}
