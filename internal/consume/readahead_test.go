package consume

import (
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// The crash that ended an earlier incarnation may have lost events that were read ahead. A
// consumer at the position where the next page begins must not use that page: the guard
// checks the incarnation in which the page was read.
func TestReadAheadIsDroppedAfterCrash(t *testing.T) {
	d, h := newLedgerStepper(t, func(c *Config) { c.BatchSize = 1 })
	for range 4 {
		appendOne(t, d.DB, "1")
	}
	h.stepFrontierTo(t, 4)
	if r, fatal := h.loop.step(t.Context(), t.Context()); r.outcome != committed || !r.work.Full || fatal != nil {
		t.Fatalf("the first batch: %+v, %v", r, fatal)
	}
	if n, err := h.loop.reader.Await(); n != 3 {
		t.Fatalf("%d pages were read ahead, want 3; %v", n, err)
	}

	before := h.frontier.Value().Token
	d.Exec(t, `DELETE FROM events WHERE global_position = 3`)
	d.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
	h.stepFrontier(t, "the events in another life", func(v *frontier.Value) bool { return v.Token != before && v.Safe >= 4 })
	h.handle(t)
	var handled string
	if err := d.DB.QueryRow(`SELECT string_agg(position::text, ' ' ORDER BY position) FROM ledger`).Scan(&handled); err != nil || handled != "1 2 4" {
		t.Fatalf("the events at %s were handled, want 1 2 4; %v", handled, err)
	}
}

// Read-ahead takes a connection of the loops' budget, and returns it after the read.
func TestReadAheadUsesBudget(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, createLedger)
	d.DB.SetMaxOpenConns(minPool)
	afterRead := new(func())
	h := newStepper(t, d.DB, interruptedLog{newRangeLog(), afterRead}, steppedConsumer{"all", nil, new(atomic.Bool)})
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	taken := -1
	*afterRead = func() { taken = len(h.loopConns) }
	h.loop.reader.Begin(t.Context(), 0, nil)
	if n, err := h.loop.reader.Await(); err != nil || n == 0 {
		t.Fatalf("read %d pages, %v", n, err)
	}
	if after := len(h.loopConns); taken != 1 || after != 0 {
		t.Errorf("while it reads, %d connections of the loops are taken, want 1; then %d, want 0", taken, after)
	}
}
