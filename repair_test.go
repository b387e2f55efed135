package worker

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// After a repair, the events that were handled are behind the consumer and all
// others are before it: above the checkpoint, or open.
func TestRepairLeavesWhatWasNotHandled(t *testing.T) {
	checkByDefault(t, "5000")
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := drawLook(t)
		p, err := d.c.lookAround(t.Context(), nil, &d.v)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := p.cross(&d.v, d.open, d.c.w.cfg.MaxOpenRanges)
		b := &lastBatch{page: p, advance: a, position: d.c.progress.position, open: d.open}
		fault := rapid.IntRange(0, len(p.Events)).Draw(t, "event at fault")
		if fault < len(p.Events) {
			b.fault = p.Events[fault : fault+1]
		} else {
			fault = 0
		}
		m := b.repair()
		open := openAfterRepair(d, a, m)
		for i, e := range p.Events {
			late := e.GlobalPosition <= b.position
			if again := e.GlobalPosition > m.to || open[e.GlobalPosition]; again != (i >= fault) {
				t.Fatalf("event %d of %d at fault, event %d at position %d comes again: %v; %+v", fault, len(p.Events), i, e.GlobalPosition, again, m)
			}
			seen[fmt.Sprintf("late: %v, at fault: %v, known: %v", late, i == fault, b.fault != nil)]++
		}
		for position := range open {
			if position > m.to {
				t.Fatalf("position %d is open above the checkpoint: %+v", position, m)
			}
		}
		for position := int64(1); position <= m.to; position++ {
			stays := wasOpen(d, position) || position > b.position
			if invisible := d.log.kind(position) == ""; stays && invisible && d.doubted[position] && !open[position] {
				t.Fatalf("position %d is in doubt and not open: %+v", position, m)
			}
		}
		if b.fault == nil && (m.to != b.position || len(open) != countOpen(d)) {
			t.Fatalf("set back to %d with %d open positions, the batch began at %d with %d", m.to, len(open), b.position, countOpen(d))
		}
		checkVoid(t, d, m)
	})
	for _, late := range []bool{false, true} {
		for _, known := range []bool{false, true} {
			if what := fmt.Sprintf("late: %v, at fault: true, known: %v", late, known); seen[what] == 0 {
				t.Errorf("never drawn: %s", what)
			}
		}
	}
}

func wasOpen(d drawnLook, position int64) bool {
	return slices.ContainsFunc(d.open, func(o openRange) bool { return o.First <= position && position <= o.Last })
}

func countOpen(d drawnLook) (n int) {
	for _, o := range d.open {
		n += int(o.Count())
	}
	return n
}

// openAfterRepair are the positions in the open ranges that the batch left
// alone, and in those that the repair writes.
func openAfterRepair(d drawnLook, a advance, m mending) map[int64]bool {
	open := map[int64]bool{}
	add := func(first, last int64) {
		for p := first; p <= last; p++ {
			open[p] = true
		}
	}
	for _, o := range d.open {
		if !slices.Contains(a.gone, o.ID) {
			add(o.First, o.Last)
		}
	}
	for _, mark := range m.marks {
		if mark.State == SkipOpen {
			add(mark.First, mark.Last)
		}
	}
	return open
}

// checkVoid looks for events among the positions that are audited as void,
// where these are not a sum.
func checkVoid(t *rapid.T, d drawnLook, m mending) {
	for _, mark := range m.marks {
		if mark.State != SkipVoid || mark.Missing != mark.Last-mark.First+1 {
			continue
		}
		for p := mark.First; p <= mark.Last; p++ {
			if d.log.kinds[p] != "" {
				t.Fatalf("position %d has an event and is void: %+v", p, m)
			}
		}
	}
}

// What a batch's last row says of its handler.
func TestRowTellsWhatTheHandlerDid(t *testing.T) {
	before, after, other := rowState{1, "(0,1)", "700", "7"}, rowState{2, "(0,2)", "701", "8"}, rowState{2, "(0,2)", "702", "9"}
	again := rowState{2, "(0,2)", "701", "9"}
	for _, c := range []struct {
		name        string
		end         ending
		seen        bool
		now         rowState
		want, crash verdict // crash: in another incarnation
	}{
		{"failed", abandoned, false, before, innocent, innocent},
		{"failed, and is committed", abandoned, false, after, handlerCommitted, handlerCommitted},
		{"failed, and another worker's batch has the same transaction after a crash", abandoned, false, again, innocent, innocent},
		{"failed, and another worker's batch has the same place and revision", abandoned, false, other, innocent, innocent},
		{"committed", done, false, after, innocent, innocent},
		{"committed, and nothing has happened", done, false, before, handlerChained, innocent},
		{"committed, and another worker went on", done, false, other, innocent, innocent},
		{"commit of unknown outcome, that did not happen", unsure, false, before, innocent, innocent},
		{"commit of unknown outcome, that happened", unsure, false, after, innocent, innocent},
		{"seen to have ended, committed", abandoned, true, after, handlerCommitted, handlerCommitted},
		{"seen to have ended, rolled back", abandoned, true, before, handlerRolledBack, handlerRolledBack},
		{"seen to have ended, another worker went on", abandoned, true, other, handlerUnknown, handlerUnknown},
	} {
		b := &lastBatch{before: before, after: after, end: c.end, seen: c.seen, advance: advance{token: "t"}}
		for token, want := range map[string]verdict{"t": c.want, "u": c.crash} {
			if got := b.judge(&progress{rowState: c.now, token: token}); got != want {
				t.Errorf("%s, in incarnation %s: verdict %d, want %d", c.name, token, got, want)
			}
		}
	}
	if v := (*lastBatch)(nil).judge(&progress{}); v != innocent {
		t.Errorf("without a batch: verdict %d", v)
	}
}

// A row that another server shows, or the same after a crash, settles nothing:
// the next one that counts may still show what the handler did.
func TestRowOfAnotherIncarnationSettlesNothing(t *testing.T) {
	before, after := rowState{1, "(0,1)", "700", "7"}, rowState{2, "(0,2)", "701", "8"}
	b := &lastBatch{before: before, after: after, advance: advance{token: "t"}}
	if b.look(&progress{rowState: before, token: "u"}) || !b.isOpen() {
		t.Errorf("after a look at another incarnation: %+v", b)
	}
	if !b.look(&progress{rowState: after, token: "t"}) || b.isOpen() {
		t.Errorf("after a look at the handler's commit: %+v", b)
	}
}

// While another server answers than the frontier's, nobody says what became of a
// batch. When the frontier finds the same, the row as the batch left it is proof.
func TestInquiryThatAnotherServerAnswers(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, createLedger)
	h := newHandMoved(t, d.DB, storepostgres.NewStore(nil), steppedConsumer{"all", nil, new(atomic.Bool)})
	appendOne(t, d.DB, "1")
	h.lookUpTo(t, 1)
	h.handle(t)
	h.loop.last.end, h.loop.last.seen = abandoned, true // as if its handler had committed it
	before := h.frontier.Value().Token
	d.Exec(t, `UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`)
	if v, _, err := h.loop.inquire(t.Context()); !errors.Is(err, store.ErrIncarnation) {
		t.Errorf("another server answers: verdict %d, %v", v, err)
	}
	h.look(t, "the other incarnation", func(v *frontier.Value) bool { return v.Token != before })
	if v, _, err := h.loop.inquire(t.Context()); v != handlerCommitted || err != nil {
		t.Errorf("the frontier has found the same server: verdict %d, %v", v, err)
	}
	if p, err := h.checkpoints.Load(t.Context(), d.DB, "all"); err != nil || p.position != 0 {
		t.Errorf("afterwards the progress is %+v, %v", p, err)
	}
}

// committedByHandler makes a batch to position 20 that writes more, and commits
// it, as a handler would.
func (g guarded) committedByHandler(t *testing.T, more ...func(tx *sql.Tx)) *lastBatch {
	t.Helper()
	from := g.load(t)
	b := &lastBatch{advance: advance{to: 20, head: 30, token: g.token}, position: from.position, before: from.rowState}
	b.advance.marks = []mark{{Range: store.Range{First: 15, Last: 15}, Missing: 1, State: SkipVoid}}
	tx := g.begin(t)
	moved, ok, err := g.c.Guard(t.Context(), tx, "c", from, b.advance)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	b.after, b.transaction = moved.rowState, moved.transaction
	for _, write := range more {
		write(tx)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRepairChangesNothingThatIsNotTheBatchs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, g guarded, b *lastBatch)
		want   bool
	}{
		"as the batch left it": {func(*testing.T, guarded, *lastBatch) {}, true},
		"the answer to the repair was lost": {func(t *testing.T, g guarded, b *lastBatch) {
			if ok, err := g.c.Repair(t.Context(), g.DB, "c", b, mending{to: 12}); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}, true},
		"another worker went on": {func(t *testing.T, g guarded, b *lastBatch) {
			g.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
			_ = g.DB.QueryRow(`SELECT ctid::text, xmin::text FROM consumer_checkpoints`).Scan(&b.after.row, &b.after.author)
		}, false},
		"another worker's batch has the same revision and place": {func(t *testing.T, g guarded, b *lastBatch) {
			b.after.author = "1"
		}, false},
		"in another incarnation": {func(t *testing.T, g guarded, b *lastBatch) { b.advance.token = uuid.NewString() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t)
			b := g.committedByHandler(t)
			c.change(t, g, b)
			seen := time.Unix(1, 0)
			m := mending{to: 12, through: 12, marks: []mark{{Range: store.Range{First: 11, Last: 11}, Missing: 1, State: SkipOpen, Seen: &seen}}}
			ok, err := g.c.Repair(t.Context(), g.DB, "c", b, m)
			if err != nil || ok != c.want {
				t.Fatalf("repaired: %v, %v; want %v", ok, err, c.want)
			}
			p := g.load(t)
			if at := map[bool]int64{true: 12, false: 20}[c.want]; p.position != at {
				t.Errorf("the checkpoint is at %d, want %d", p.position, at)
			}
			var operations, void int
			if err := g.DB.QueryRow(`SELECT (SELECT count(*) FROM consumer_operations), (SELECT count(*) FROM consumer_gap_skips WHERE state = 'void')`).Scan(&operations, &void); err != nil {
				t.Fatal(err)
			}
			if once := map[bool]int{true: 1}[c.want]; operations != once || void != 1-once {
				t.Errorf("%d operations and %d rows of void positions", operations, void)
			}
			if name == "as the batch left it" && (len(p.open) != 1 || !p.open[0].Seen.Equal(seen) || p.revision != b.after.revision+1) {
				t.Errorf("afterwards the progress is %+v", p)
			}
		})
	}
}

// Of the dead letters, a repair removes those that the batch has added for events
// which it has not handled. A batch of late events, or of a dead letter, is at
// fault far below letters that have been there before.
func TestRepairLeavesOtherDeadLettersAlone(t *testing.T) {
	g := newGuarded(t)
	add := func(tx *sql.Tx, positions ...int64) {
		t.Helper()
		var letters []letter
		for _, p := range positions {
			letters = append(letters, letter{aggregate: aggregate{"Order", strconv.FormatInt(p, 10)}, Position: p, EventID: uuid.New(), Error: "refused"})
		}
		if err := g.c.AddLetters(t.Context(), tx, "c", letters); err != nil {
			t.Fatal(err)
		}
	}
	earlier := g.begin(t)
	add(earlier, 5, 9)
	g.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('d', 18, 'Order', 'd', gen_random_uuid(), '', 1)`)
	if err := earlier.Commit(); err != nil {
		t.Fatal(err)
	}
	b := g.committedByHandler(t, func(tx *sql.Tx) { add(tx, 6, 12, 18) })
	if ok, err := g.c.Repair(t.Context(), g.DB, "c", b, mending{to: 10, through: 7}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	var left string
	if err := g.DB.QueryRow(`SELECT string_agg(consumer_name || global_position, ' ' ORDER BY global_position) FROM consumer_dead_letters`).Scan(&left); err != nil || left != "c5 c6 c9 d18" {
		t.Errorf("the dead letters %s are left, want c5 c6 c9 d18; %v", left, err)
	}
}

// The letter of a retry that its handler committed is back, to be tried again.
func TestRepairPutsADeadLetterBack(t *testing.T) {
	r := &retry{position: 7, attempts: 3}
	e := store.PersistedEvent{GlobalPosition: 7, AggregateType: "Order", AggregateID: "a", EventID: uuid.New(), EventType: "Happened"}
	b := &lastBatch{page: page{Page: reader.Page{Events: []store.PersistedEvent{e}}, retried: r}, advance: advance{to: 10}}
	b.page.Look.Checkpoint, b.page.Look.Through = 10, 10
	b.advance.under = &frontier.Value{}
	m := b.repair()
	if len(m.letters) != 1 || m.letters[0].Position != 7 || m.letters[0].Attempts != 4 || m.to != 10 {
		t.Errorf("the repair is %+v", m)
	}
}
