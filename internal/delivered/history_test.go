package delivered_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/store"
)

const logEnd = 24

// history is a consumer on a small log, with its operators, workers and writers.
type history struct {
	t *rapid.T
	*events
	units  []*unit
	shadow bool // every event is delivered as a replay
	seen   map[string]int
}

// events are a log, and what one or several consumers have made of it.
type events struct {
	slot    [logEnd + 1]int      // of the event at each position; below 0: the event never appears
	visible [logEnd + 1]bool     // the event has appeared
	had     [logEnd + 1]bool     // the effect was had
	left    [logEnd + 1]bool     // an operator has skipped or discarded the event
	by      [logEnd + 1]*history // who had the effect
}

type unit struct {
	slots         partition.Range
	position      int64
	open, letters map[int64]bool
	borders       delivered.Borders
}

func (u *unit) pending() (all []store.Range) {
	for _, m := range []map[int64]bool{u.open, u.letters} {
		for p := range m {
			all = append(all, store.Range{First: p, Last: p})
		}
	}
	return all
}

func (u *unit) pass() { u.borders = u.borders.Pass(u.slots, "k", u.position, u.pending()) }

func (u *unit) handled(first, last int64) {
	kept := slices.DeleteFunc(u.pending(), func(r store.Range) bool { return r.First < first || r.First > last })
	u.borders, _ = u.borders.Handle(delivered.Without([]store.Range{{First: first, Last: last}}, kept))
}

// deliver passes an event to the handler, and checks Replay.
func (h *history) deliver(u *unit, p int64) {
	replay, err := u.borders.Had(p, "k", func() (int, error) { return h.slot[p], nil })
	if err != nil || replay != (h.had[p] || h.shadow) {
		h.t.Fatalf("the event at %d is delivered with Replay %v, had is %v; the borders are %v", p, replay, h.had[p], u.borders)
	}
	if replay {
		h.seen["replayed"]++
	}
	if by := h.by[p]; replay && by != nil && by != h && !u.borders.IsOthers(p) {
		h.t.Fatalf("another consumer had the effect of the event at %d; the borders are %v", p, u.borders)
	}
	if !h.shadow && !h.had[p] {
		h.by[p] = h
	}
	h.had[p] = h.had[p] || !h.shadow
}

func (h *history) mine(u *unit, p int64) bool {
	return h.slot[p] >= 0 && h.visible[p] && u.slots.Has(h.slot[p])
}

// batch advances to a position. The last argument reports whether an event fails.
func (h *history) batch(u *unit, to int64, letter func() bool) {
	from := u.position
	for p := from + 1; p <= to; p++ {
		switch {
		case h.slot[p] >= 0 && !h.visible[p]:
			u.open[p] = true
		case h.mine(u, p) && letter():
			u.letters[p] = true
		case h.mine(u, p):
			h.deliver(u, p)
		}
	}
	u.position = to
	u.handled(from+1, to)
}

// late delivers events that have appeared.
func (h *history) late(u *unit, letter func() bool) {
	for _, p := range slices.Sorted(maps.Keys(u.open)) {
		if !h.visible[p] {
			continue
		}
		h.seen["late"]++
		delete(u.open, p)
		switch {
		case h.mine(u, p) && letter():
			u.letters[p] = true
			continue
		case h.mine(u, p):
			h.deliver(u, p)
		}
		u.handled(p, p)
	}
}

func (h *history) retry(u *unit, p int64) {
	h.deliver(u, p)
	delete(u.letters, p)
	u.handled(p, p)
}

func (h *history) back(u *unit, to int64) {
	u.pass()
	above := func(p int64, _ bool) bool { return p > to }
	maps.DeleteFunc(u.open, above)
	maps.DeleteFunc(u.letters, above)
	u.position = to
}

func (h *history) forward(u *unit, to int64) {
	u.pass()
	for p := u.position + 1; p <= to; p++ {
		h.left[p] = h.left[p] || !h.shadow && h.mine(u, p)
	}
	u.borders = u.borders.Cross(to)
	u.position = to
}

// skip skips the next visible event.
func (h *history) skip(u *unit) {
	for p := u.position + 1; p <= logEnd; p++ {
		if h.slot[p] < 0 || !h.visible[p] {
			continue
		}
		from := u.position
		h.forward(u, p)
		for q := from + 1; q < p; q++ {
			if h.slot[q] >= 0 {
				u.open[q] = true
			}
		}
		return
	}
}

// replay makes dead letters of all events of an aggregate that the unit has passed.
func (h *history) replay(u *unit, slot int) {
	u.pass()
	for p := int64(1); p <= u.position; p++ {
		if h.slot[p] == slot && h.mine(u, p) && !u.open[p] {
			u.letters[p] = true
		}
	}
}

func (h *history) split(u *unit, n int) (parts []*unit) {
	for _, slots := range u.slots.Children(n) {
		c := &unit{slots: slots, position: u.position, open: maps.Clone(u.open), letters: map[int64]bool{}, borders: u.borders}
		for p := range u.letters {
			if slots.Has(h.slot[p]) {
				c.letters[p] = true
			}
		}
		parts = append(parts, c)
	}
	return parts
}

// merge merges all units. Units that are behind advance first.
func (h *history) merge() {
	to := slices.MaxFunc(h.units, func(a, b *unit) int { return int(a.position - b.position) }).position
	into := &unit{slots: partition.All, position: to, open: map[int64]bool{}, letters: map[int64]bool{}}
	var parts []delivered.Part
	never := func() bool { return false }
	for _, u := range h.units {
		h.batch(u, to, never)
		h.late(u, never)
		maps.Copy(into.open, u.open)
		maps.Copy(into.letters, u.letters)
	}
	for p := range into.open { // a part that passed the position as void does not watch it
		if h.visible[p] {
			return
		}
	}
	for _, u := range h.units {
		stored, err := delivered.Parse(u.borders.String())
		if err != nil {
			h.t.Fatal(err)
		}
		parts = append(parts, delivered.Part{Slots: u.slots, Borders: stored})
	}
	into.borders = delivered.Join(parts, "k")
	if len(into.borders) > 1 {
		h.seen["merged with several borders"]++
	}
	h.units = []*unit{into}
}

var aggregates = []int{0, 700, 1500, 2200, 3000, 4095}

func drawEvents(rt *rapid.T) *events {
	e := &events{}
	for p := 1; p <= logEnd; p++ {
		e.slot[p] = rapid.SampledFrom(append([]int{-1}, aggregates...)).Draw(rt, "slot")
		e.visible[p] = e.slot[p] >= 0 && rapid.IntRange(0, 3).Draw(rt, "appears") > 0
	}
	return e
}

func whole() *unit {
	return &unit{slots: partition.All, open: map[int64]bool{}, letters: map[int64]bool{}}
}

// step is one step of the consumer, its operators or its writers.
func (h *history) step() {
	rt := h.t
	letter := func() bool { return rapid.IntRange(0, 5).Draw(rt, "letter") == 0 }
	i := rapid.IntRange(0, len(h.units)-1).Draw(rt, "unit")
	u := h.units[i]
	letters := slices.Sorted(maps.Keys(u.letters))
	what := rapid.SampledFrom([]string{"batch", "batch", "batch", "late", "appear", "retry", "discard", "back", "back all", "forward", "skip", "replay", "split", "merge"}).Draw(rt, "step")
	switch what {
	case "batch":
		h.batch(u, min(u.position+rapid.Int64Range(1, 8).Draw(rt, "events"), logEnd), letter)
	case "late":
		h.late(u, letter)
	case "appear":
		for p := range h.slot {
			if h.slot[p] >= 0 && !h.visible[p] {
				h.visible[p] = true
				break
			}
		}
	case "retry", "discard":
		if len(letters) == 0 {
			return
		}
		p := rapid.SampledFrom(letters).Draw(rt, "which")
		if what == "retry" {
			h.retry(u, p)
		} else {
			u.pass()
			delete(u.letters, p)
			h.left[p] = h.left[p] || !h.shadow
		}
	case "back":
		h.back(u, rapid.Int64Range(0, u.position).Draw(rt, "to"))
	case "back all":
		to := rapid.Int64Range(0, u.position).Draw(rt, "to")
		for _, u := range h.units {
			if u.position > to {
				h.back(u, to)
			}
		}
	case "forward":
		to := u.position
		for to < logEnd && (h.slot[to+1] < 0 || h.visible[to+1]) { // the position is settled
			to++
		}
		h.forward(u, rapid.Int64Range(u.position, to).Draw(rt, "to"))
	case "skip":
		h.skip(u)
	case "replay":
		h.replay(u, rapid.SampledFrom(aggregates).Draw(rt, "aggregate"))
	case "split":
		if parts := h.split(u, rapid.IntRange(2, 5).Draw(rt, "partitions")); len(parts) > 1 {
			h.units = slices.Replace(h.units, i, i+1, parts...)
		}
	case "merge":
		if len(h.units) > 1 {
			h.merge()
		}
	}
	h.seen[what]++
}

// The consumer has each effect once, for every sequence of steps. The steps are batches, late
// events, dead letters, resets, skips, splits, merges and replays of an aggregate. Replay
// reports exactly the events whose effects the consumer has had. A longer search:
//
//	go test ./internal/delivered -rapid.checks=100000
func TestEachEffectOnce(t *testing.T) {
	seen := map[string]int{}
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{t: rt, events: drawEvents(rt), seen: seen}
		runs++
		h.units = []*unit{whole()}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			h.step()
		}
		// At the end, a rebuild handles the events that were skipped.
		for p := range h.slot {
			h.visible[p] = h.slot[p] >= 0
		}
		never := func() bool { return false }
		for _, u := range h.units {
			h.back(u, 0)
			h.batch(u, logEnd, never)
		}
		for p := range h.slot {
			if h.slot[p] >= 0 && p > 0 && !h.had[p] {
				rt.Fatalf("the effect of the event at %d was never had", p)
			}
		}
	})
	t.Logf("in %d histories: %v", runs, seen)
	for _, what := range []string{"replayed", "late", "merged with several borders"} {
		if runs >= 100 && seen[what] == 0 {
			t.Errorf("no run reached %q", what)
		}
	}
}

// Borders of another key do not tell the border of an event. An effect may then repeat, and
// none is lost.
func TestBordersOfAnotherKey(t *testing.T) {
	half := partition.Cut(2)
	parts := []delivered.Part{{Slots: half[0], Borders: delivered.Borders{}.Pass(half[0], "customer", 9, nil)}, {Slots: half[1]}}
	b := delivered.Join(parts, "customer")
	for _, test := range []struct {
		key  string
		slot int
		want bool
	}{{"customer", 0, true}, {"customer", 4095, false}, {"", 0, false}, {"region", 0, false}} {
		got, err := b.Had(5, test.key, func() (int, error) { return test.slot, nil })
		if err != nil || got != test.want {
			t.Errorf("%v: %v, %v", test, got, err)
		}
	}
	if all := b.Pass(partition.All, "", 9, nil); all.String() != `[{"first":0,"last":2047,"key":"customer","after":9},{"first":2048,"last":4095,"key":"customer","after":9}]` {
		t.Errorf("then %v", all)
	}
	if got, err := b.Pass(partition.All, "", 9, nil).Had(5, "region", func() (int, error) { return 0, fmt.Errorf("asked") }); !got || err != nil {
		t.Errorf("all borders agree, but Had returned %v, %v", got, err)
	}
}

// Borders are stored without loss, and in a short form.
func TestBordersRoundTrip(t *testing.T) {
	for _, b := range []delivered.Borders{nil, delivered.Borders{}.Pass(partition.All, "k", 100, []store.Range{{First: 7, Last: 9}, {First: 3, Last: 3}, {First: 8, Last: 12}, {First: 200, Last: 200}})} {
		again, err := delivered.Parse(b.String())
		if err != nil || again.String() != b.String() {
			t.Errorf("%v became %v, %v", b, again, err)
		}
	}
	b := delivered.Borders{}.Pass(partition.All, "k", 100, []store.Range{{First: 7, Last: 9}, {First: 3, Last: 3}, {First: 8, Last: 12}, {First: 200, Last: 200}})
	if b.String() != `[{"first":0,"last":4095,"after":100,"except":[{"first":3,"last":3},{"first":7,"last":12}]}]` {
		t.Errorf("stored as %v", b)
	}
	if !b.Beyond(101) || b.Beyond(100) {
		t.Error("Beyond does not compare with the highest border")
	}
	if _, err := delivered.Parse("{"); err == nil || !strings.Contains(err.Error(), "set it to '[]'") {
		t.Error("an invalid text was parsed")
	}
}
