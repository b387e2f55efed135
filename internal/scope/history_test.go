package scope_test

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
)

// A position that was in doubt at a change counts as not missed, whatever other steps there
// are.
func TestPositionInDoubtIsNotMissed(t *testing.T) {
	t.Parallel()
	at := func(from scope.Scope, position int64, open string) scope.Step {
		var c scope.Changed
		if err := json.Unmarshal([]byte(open), &c); err != nil {
			t.Fatal(err)
		}
		c.From, c.Position = from, position
		return scope.Step{Slots: partition.All, Changed: &c}
	}
	a := scope.Of([]string{"A"}, 0, "", "")
	doubts := at(a, 9, `{"open": [{"first": 3, "last": 5}]}`)
	for position, want := range map[int64]bool{2: true, 3: false, 5: false, 6: true, 9: true, 10: false} {
		if got := scope.Missed([]scope.Step{doubts}, 0, "B", position); got != want {
			t.Errorf("position %d: %v", position, got)
		}
	}
	if scope.Missed([]scope.Step{at(a, 9, `{}`), doubts}, 0, "B", 4) {
		t.Error("position 4 is missed, although it was in doubt at the second change")
	}
}

// A consumer with two units goes through builds, resets and replays. A model records for each
// event whether it was delivered since its position was last passed. Missed returns true
// exactly for the events that were passed without selection.
func TestMissed(t *testing.T) {
	t.Parallel()
	halves := []partition.Range{{First: 0, Last: 0x7ff}, {First: 0x800, Last: 0xfff}}
	types := []string{"A", "B", "C"}
	rapid.Check(t, func(t *rapid.T) {
		const last = 12
		draw := func() scope.Scope {
			return scope.Of(rapid.SliceOfNDistinct(rapid.SampledFrom(types), 0, 2, rapid.ID[string]).Draw(t, "types"), 0, "", "")
		}
		type fate int // of an event
		const (
			ahead fate = iota
			delivered
			unselected
			crossed
		)
		var steps []scope.Step
		kinds := rapid.SliceOfN(rapid.SampledFrom(types), last, last).Draw(t, "log")
		first := draw()
		selects := []scope.Scope{first, first}
		at := []int64{0, 0}
		fates := [2][last + 1]fate{}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			h := rapid.IntRange(0, 1).Draw(t, "half")
			switch rapid.SampledFrom([]string{"run", "run", "build", "reset", "replay"}).Draw(t, "step") {
			case "run":
				to := rapid.Int64Range(at[h], last).Draw(t, "to")
				for p := at[h] + 1; p <= to; p++ {
					if fates[h][p] = delivered; !selects[h].Selects(kinds[p-1]) {
						fates[h][p] = unselected
					}
				}
				at[h] = to
			case "build":
				to := draw()
				steps = append(steps, scope.Step{Slots: halves[h], Changed: &scope.Changed{From: selects[h], Position: at[h]}})
				selects[h] = to
			case "reset":
				to := rapid.Int64Range(0, last).Draw(t, "to")
				steps = append(steps, scope.Step{Slots: halves[h], Moved: &scope.Moved{From: at[h], To: to}})
				for p := int64(1); p <= last; p++ {
					switch {
					case p > to && p <= at[h]:
						fates[h][p] = ahead
					case p > at[h] && p <= to:
						fates[h][p] = crossed
					}
				}
				at[h] = to
			case "replay":
				kind := rapid.SampledFrom(types).Draw(t, "kind")
				if !selects[h].Selects(kind) {
					continue // the replay is rejected
				}
				steps = append(steps, scope.Step{Slots: halves[h], Given: &scope.Given{Types: []string{kind}, To: at[h]}})
				for p := int64(1); p <= at[h]; p++ {
					if kinds[p-1] == kind && fates[h][p] == unselected {
						fates[h][p] = delivered
					}
				}
			}
		}
		for h := range halves {
			for p := int64(1); p <= at[h]; p++ {
				if !selects[h].Selects(kinds[p-1]) {
					continue // a replay of the event is rejected
				}
				if got, want := scope.Missed(steps, halves[h].First+7, kinds[p-1], p), fates[h][p] == unselected; got != want {
					t.Fatalf("half %d, position %d of type %s: %v, want %v", h, p, kinds[p-1], got, want)
				}
			}
		}
	})
}
