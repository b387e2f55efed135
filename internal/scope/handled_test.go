package scope_test

import (
	"encoding/json"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

// handling is a model of a unit: which events its handler has got since their positions were last passed.
type handling struct {
	log     []scope.Aggregate // of position 1 on
	steps   []scope.Step
	selects scope.Scope
	at      int64
	got     map[int64]bool
	letters map[int64]bool
	missed  map[int64]bool // the code did not select the event, also after a replay of the aggregate
	again   map[int64]bool // the event was given since it was passed
	unknown map[int64]bool // and dropped then
}

func (h *handling) of(p int64) scope.Aggregate { return h.log[p-1] }

func (h *handling) step(s scope.Step) {
	s.Slots = partition.All
	h.steps = append(h.steps, s)
}

// run passes the next event. It may fail.
func (h *handling) run(fails bool) {
	if h.at == int64(len(h.log)) {
		return
	}
	h.at++
	selected := h.selects.Selects(h.of(h.at).Type)
	h.got[h.at], h.letters[h.at], h.missed[h.at] = selected && !fails, selected && fails, !selected
}

// give delivers all events of aggregates, or they wait for it.
func (h *handling) give(fails bool, of ...scope.Aggregate) {
	for p := int64(1); p <= h.at; p++ {
		if slices.Contains(of, h.of(p)) {
			h.got[p], h.letters[p], h.again[p], h.unknown[p] = true, fails, true, false
		}
	}
}

func (h *handling) reset(to int64) {
	h.step(scope.Step{Moved: &scope.Moved{From: h.at, To: to}})
	for p := min(h.at, to) + 1; p <= max(h.at, to); p++ {
		h.got[p], h.letters[p], h.missed[p], h.again[p], h.unknown[p] = false, false, false, false, false
	}
	h.at = to
}

// drop skips or discards events.
func (h *handling) drop(d scope.Dropped) {
	h.step(scope.Step{Dropped: &d})
	for _, p := range append(d.Positions, d.Position) {
		h.got[p], h.letters[p], h.unknown[p] = false, false, h.again[p]
	}
}

func (h *handling) waiting() (positions []int64) {
	for p := int64(1); p <= h.at; p++ {
		if h.letters[p] {
			positions = append(positions, p)
		}
	}
	return positions
}

// A consumer goes through all that decides which events its handler gets. Handled returns those that it
// has got.
func TestHandled(t *testing.T) {
	t.Parallel()
	aggregates := []scope.Aggregate{{Type: "A", ID: "1"}, {Type: "A", ID: "2"}, {Type: "B", ID: "1"}}
	rapid.Check(t, func(t *rapid.T) {
		scopes := rapid.SampledFrom([]scope.Scope{scope.Of([]string{"A"}, 0, "", ""), scope.Of([]string{"B"}, 0, "", ""), scope.Of(nil, 0, "", "")})
		h := handling{
			log: rapid.SliceOfN(rapid.SampledFrom(aggregates), 12, 12).Draw(t, "log"), selects: scopes.Draw(t, "scope"),
			got: map[int64]bool{}, letters: map[int64]bool{}, missed: map[int64]bool{}, again: map[int64]bool{}, unknown: map[int64]bool{},
		}
		last := int64(len(h.log))
		begin := rapid.Int64Range(0, 4).Draw(t, "begin") // the scope is recorded from there on
		start := begin
		if h.at = begin; rapid.Bool().Draw(t, "begun by an operator") {
			h.step(scope.Step{Began: &scope.Began{Position: begin}})
			start = rapid.Int64Range(0, 4).Draw(t, "start of the code")
		}
		for range rapid.IntRange(0, 25).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"run", "run", "run", "build", "reset", "skip", "discard", "discard all", "replay", "replay types"}).Draw(t, "step") {
			case "run":
				for range rapid.IntRange(1, 6).Draw(t, "events") {
					h.run(rapid.IntRange(0, 3).Draw(t, "fails") == 0)
				}
			case "build":
				h.step(scope.Step{Changed: &scope.Changed{From: h.selects, Position: h.at}})
				h.selects = scopes.Draw(t, "scope")
			case "reset":
				h.reset(rapid.Int64Range(0, last).Draw(t, "to"))
			case "skip":
				if h.at < last {
					h.at++
					h.missed[h.at] = h.at > begin && !h.selects.Selects(h.of(h.at).Type)
					h.drop(scope.Dropped{Position: h.at})
				}
			case "discard":
				if w := h.waiting(); len(w) > 0 {
					h.drop(scope.Dropped{Position: rapid.SampledFrom(w).Draw(t, "dead letter")})
				}
			case "discard all":
				h.drop(scope.Dropped{Positions: h.waiting()})
			case "replay":
				of := rapid.SampledFrom(aggregates).Draw(t, "aggregate")
				h.step(scope.Step{Replayed: &scope.Replayed{Aggregate: of, To: h.at}})
				h.give(rapid.Bool().Draw(t, "waits"), of)
			case "replay types":
				kind := rapid.SampledFrom([]string{"A", "B"}).Draw(t, "type")
				if !h.selects.Selects(kind) {
					continue // it is refused
				}
				var of []scope.Aggregate
				for p := begin + 1; p <= h.at; p++ {
					if h.of(p).Type == kind && h.missed[p] {
						of = append(of, h.of(p))
					}
				}
				h.step(scope.Step{Given: &scope.Given{Types: []string{kind}, To: h.at}})
				h.give(rapid.Bool().Draw(t, "waits"), of...)
				for p := range h.missed {
					h.missed[p] = h.missed[p] && !(begin < p && p <= h.at && h.of(p).Type == kind)
				}
			}
		}
		for _, of := range aggregates {
			if !h.selects.Selects(of.Type) {
				continue // no step shows what the last build has passed
			}
			var events []scope.Event
			var want []int64
			again, known := false, true // again: after a reset
			for p := int64(1); p <= last; p++ {
				again = again || h.of(p) == of && p > h.at && p <= scope.Reached(h.steps, 0)
				if h.of(p) == of && p <= h.at {
					known = known && !h.unknown[p]
					unknown := p <= begin
					events = append(events, scope.Event{Position: p, Unknown: unknown})
					if h.got[p] || unknown && h.missed[p] {
						want = append(want, p)
					}
				}
			}
			got, gotKnown := scope.Handled(h.steps, 0, of, start, events)
			waits := func(p int64) bool { return h.letters[p] }
			got, want = slices.DeleteFunc(got, waits), slices.DeleteFunc(want, waits)
			if !again && (gotKnown != known || known && !slices.Equal(got, want)) {
				t.Fatalf("%v: %v, %v, want %v, %v", of, got, gotKnown, want, known)
			}
		}
	})
}

// A later delivery is of events whose build is known. Another one does not show that its aggregate was delivered.
func TestHandledLater(t *testing.T) {
	t.Parallel()
	steps := []scope.Step{
		{Slots: partition.All, Changed: &scope.Changed{From: scope.Of([]string{"A"}, 0, "", ""), Position: 3}},
		{Slots: partition.All, Given: &scope.Given{Types: []string{"B"}, To: 3}},
	}
	if got, _ := scope.Handled(steps, 0, scope.Aggregate{Type: "B", ID: "1"}, 3, []scope.Event{{Position: 3, Unknown: true}}); len(got) > 0 {
		t.Errorf("handled are %v", got)
	}
	steps = append(steps, scope.Step{Slots: partition.All, Changed: &scope.Changed{From: scope.Of([]string{"A"}, 0, "", ""), Position: 5}})
	if got, _ := scope.Handled(steps, 0, scope.Aggregate{Type: "B", ID: "1"}, 0, []scope.Event{{Position: 3}, {Position: 5}}); !slices.Equal(got, []int64{3}) {
		t.Errorf("handled are %v: event 5 is not part of the delivery", got)
	}
}

// Which build has passed an event that was in doubt at a change is unknown: it counts as handled.
func TestHandledInDoubt(t *testing.T) {
	t.Parallel()
	c := scope.Changed{From: scope.Of([]string{"B"}, 0, "", ""), Position: 3}
	if err := json.Unmarshal([]byte(`{"open": [{"first": 2, "last": 2}]}`), &c); err != nil {
		t.Fatal(err)
	}
	steps := []scope.Step{{Slots: partition.All, Changed: &c}}
	events := []scope.Event{{Position: 1}, {Position: 2}, {Position: 3, Unknown: true}, {Position: 4}}
	if got, _ := scope.Handled(steps, 0, scope.Aggregate{Type: "A", ID: "1"}, 0, events); !slices.Equal(got, []int64{2, 3, 4}) {
		t.Errorf("handled are %v", got)
	}
	halves := []scope.Step{{Slots: partition.Range{First: 1, Last: 1}, Changed: &c}, {Slots: partition.Range{First: 1, Last: 1}, Moved: &scope.Moved{From: 9, To: 1}}}
	if got, _ := scope.Handled(halves, 0, scope.Aggregate{Type: "A", ID: "1"}, 0, events); len(got) != 4 || scope.Reached(halves, 0) != 0 || scope.Reached(halves, 1) != 9 {
		t.Errorf("of another unit: handled are %v", got)
	}
}
