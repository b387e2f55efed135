package consume

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/store"
)

// After a repair, the handled events are behind the consumer. All others are before it:
// above the checkpoint, or open.
func TestRepairKeepsUnhandledEvents(t *testing.T) {
	tier.Checks(t, 5_000, 100_000)
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := drawLook(t)
		p := d.read(t)
		p.plan(d.c.w.cfg.MaxOpenRanges)
		p.planReceipt(math.MaxInt64)
		checkReceipt(t, p.advance.Receipt, p.Events)
		a, before := p.advance, p.from.Position
		through := int64(0)
		fault := rapid.IntRange(0, len(p.Events)).Draw(t, "event at fault")
		known := fault < len(p.Events)
		if known {
			through = p.Events[fault].GlobalPosition - 1
		} else {
			fault = 0
		}
		m := (&undo{work: *p}).Repair(through)
		open := openAfterRepair(d, a, m)
		for i, e := range p.Events {
			late := e.GlobalPosition <= before
			if again := e.GlobalPosition > m.To || open[e.GlobalPosition]; again != (i >= fault) {
				t.Fatalf("event %d of %d at fault, event %d at position %d comes again: %v; %+v", fault, len(p.Events), i, e.GlobalPosition, again, m)
			}
			seen[fmt.Sprintf("late: %v, at fault: %v, known: %v", late, i == fault, known)]++
		}
		for position := range open {
			if position > m.To {
				t.Fatalf("position %d is open above the checkpoint: %+v", position, m)
			}
		}
		for position := int64(1); position <= m.To; position++ {
			stays := wasOpen(d, position) || position > before
			if invisible := d.log.kind(position) == ""; stays && invisible && d.doubted[position] && !open[position] {
				t.Fatalf("position %d is in doubt and not open: %+v", position, m)
			}
		}
		if !known && (m.To != before || len(open) != countOpen(d)) {
			t.Fatalf("set back to %d with %d open positions, the batch began at %d with %d", m.To, len(open), before, countOpen(d))
		}
		checkVoid(t, d, m)
		checkReceipt(t, m.Receipt, p.Events[:fault])
	})
	for _, late := range []bool{false, true} {
		for _, known := range []bool{false, true} {
			if what := fmt.Sprintf("late: %v, at fault: true, known: %v", late, known); seen[what] == 0 {
				t.Errorf("never drawn: %s", what)
			}
		}
	}
}

func wasOpen(d drawnRead, position int64) bool {
	return slices.ContainsFunc(d.open, func(o progress.OpenRange) bool { return o.First <= position && position <= o.Last })
}

func countOpen(d drawnRead) (n int) {
	for _, o := range d.open {
		n += int(o.Count())
	}
	return n
}

// openAfterRepair returns the positions in the open ranges that the batch kept and that the
// repair writes.
func openAfterRepair(d drawnRead, a progress.Advance, m progress.Repair) map[int64]bool {
	open := map[int64]bool{}
	add := func(first, last int64) {
		for p := first; p <= last; p++ {
			open[p] = true
		}
	}
	for _, o := range d.open {
		if !slices.Contains(a.Gone, o.ID) {
			add(o.First, o.Last)
		}
	}
	for _, mark := range m.Marks {
		if mark.State == progress.Open {
			add(mark.First, mark.Last)
		}
	}
	return open
}

// checkVoid fails if a position that is audited as void has an event, where the audit names
// positions.
func checkVoid(t *rapid.T, d drawnRead, m progress.Repair) {
	for _, mark := range m.Marks {
		if mark.State != progress.Void || mark.Missing != mark.Last-mark.First+1 {
			continue
		}
		for p := mark.First; p <= mark.Last; p++ {
			if d.log.kinds[p] != "" {
				t.Fatalf("position %d has an event and is void: %+v", p, m)
			}
		}
	}
}

// checkReceipt fails unless a batch that began without a receipt has one of exactly these events.
func checkReceipt(t *rapid.T, r progress.Receipt, handled []store.PersistedEvent) {
	if r.Region == nil {
		t.Fatal("there is no receipt")
	}
	got, want := r.Region.Sum, receipt.Sum{}
	for _, row := range r.Rows {
		if got = got.Plus(row.Sum); row.Event != nil {
			got = got.Plus((&receipt.Event{Position: row.First, ID: *row.Event}).Sum())
		}
	}
	for _, e := range handled {
		want = want.Plus((&receipt.Event{Position: e.GlobalPosition, ID: e.EventID}).Sum())
	}
	if got != want {
		t.Fatalf("the receipt has %+v, and %+v of %d events is handled: %+v", got, want, len(handled), r)
	}
}

// While another server than the frontier's answers, the outcome of a batch stays unknown.
// When the frontier has the same incarnation, the row as the batch left it is proof.
func TestOutcomeLookupOnAnotherServer(t *testing.T) {
	d, h := newLedgerStepper(t)
	appendOne(t, d.DB, "1")
	h.stepFrontierTo(t, 1)
	h.handle(t)
	check := &h.loop.check
	check.Last.End = txcheck.Abandoned // as if its handler had committed it
	before := h.frontier.Value().Token
	d.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
	if check.Mismatch(t.Context(), nil) || !check.Last.IsOpen() {
		t.Error("the row of another server counts")
	}
	h.stepFrontier(t, "the other incarnation", func(v *frontier.Value) bool { return v.Token != before })
	if !check.Mismatch(t.Context(), nil) {
		t.Error("the frontier has found the same server, and the row does not count")
	}
	h.loop.stop = t.Context()
	if err := check.ResolveBeforeShutdown(t.Context()); !errors.Is(err, ErrTransactionEnded) {
		t.Errorf("the handler has committed: %v", err)
	}
	if p, err := h.checkpoints.Load(t.Context(), d.DB, "all"); err != nil || p.Position != 0 {
		t.Errorf("afterwards the progress is %+v, %v", p, err)
	}
}

// The dead letter of a retry that its handler committed is restored, to be tried again.
func TestRepairPutsADeadLetterBack(t *testing.T) {
	r := &progress.Retry{Position: 7, Attempts: 3}
	e := store.PersistedEvent{GlobalPosition: 7, AggregateType: "Order", AggregateID: "a", EventID: uuid.New(), EventType: "Happened"}
	w := &work{Page: reader.Page{Events: []store.PersistedEvent{e}}, retried: r, from: progress.State{Position: 10}, advance: progress.Advance{To: 10}, under: &frontier.Value{}}
	w.Positions.Checkpoint, w.Positions.Through = 10, 10
	for _, r.Received = range []bool{false, true} {
		w.handled = nil
		w.planReceipt(math.MaxInt64)
		if rows := w.advance.Rows; (len(rows) == 1) == r.Received || w.advance.Region.Events != 0 {
			t.Errorf("received before: %v; the receipt gets %+v and %+v", r.Received, rows, w.advance.Region)
		}
		m := w.checked(nil).Undo.Repair(0)
		if len(m.DeadLetters) != 1 || m.DeadLetters[0].Position != 7 || m.DeadLetters[0].Attempts != 4 || m.DeadLetters[0].Received != r.Received || m.To != 10 || len(m.Rows) > 0 {
			t.Errorf("received before: %v; the repair is %+v", r.Received, m)
		}
	}
}
