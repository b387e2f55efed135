package delivered_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/partition"
)

// swap lets a shadow take over the effects of another consumer. It returns false, and changes
// nothing, if effects would be lost.
func swap(live, shadow *history) bool {
	var after []delivered.Borders
	for _, s := range shadow.units {
		var parts []delivered.Part
		for _, u := range live.units {
			borders := u.borders.Pass(u.slots, "k", u.position, u.pending())
			if lost := delivered.Without(borders.Owed(u.position, u.pending(), s.position), s.pending()); len(lost) > 0 {
				return false
			}
			parts = append(parts, delivered.Part{Slots: u.slots, Borders: borders.Dismiss(u.position, u.pending(), s.position)})
		}
		after = append(after, delivered.Join(parts, "k").Taken())
	}
	for i, s := range shadow.units {
		s.borders = after[i]
		for _, u := range live.units {
			for p := s.position + 1; p <= u.position; p++ { // what an operator has left out is not done by the other
				if s.slots.Has(live.slot[p]) && u.slots.Has(live.slot[p]) && live.left[p] && !u.open[p] && !u.letters[p] {
					live.had[p] = true
				}
			}
		}
	}
	for _, u := range live.units {
		u.borders = delivered.Shadow()
	}
	live.shadow, shadow.shadow = true, false
	return true
}

// Over two consumers of which one is a shadow, each effect is had once, however often they are
// switched and whatever happens to each. At the end, only what an operator skipped or discarded was
// not had. A longer search:
//
//	go test ./internal/delivered -run TestSwitch -rapid.checks=100000
func TestSwitch(t *testing.T) {
	seen := map[string]int{}
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		e := drawEvents(rt)
		live := &history{t: rt, events: e, units: []*unit{whole()}, seen: map[string]int{}}
		shadow := &history{t: rt, events: e, units: []*unit{whole()}, seen: map[string]int{}, shadow: true}
		shadow.units[0].borders = delivered.Shadow()
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"live", "live", "shadow", "shadow", "switch"}).Draw(rt, "whose") {
			case "live":
				live.step()
			case "shadow":
				shadow.step()
			case "switch":
				if !swap(live, shadow) {
					seen["refused"]++
					continue
				}
				live, shadow = shadow, live
				seen["switched"]++
				if len(live.units[0].borders) > 1 {
					seen["switched with several borders"]++
				}
			}
		}
		for p := range e.slot {
			e.visible[p] = e.slot[p] >= 0
		}
		if slices.ContainsFunc(shadow.units, func(u *unit) bool { return !u.borders.IsShadow() }) {
			rt.Fatal("the shadow is none any more")
		}
		never := func() bool { return false }
		for _, u := range live.units {
			live.batch(u, logEnd, never)
			live.late(u, never)
			for p := range u.letters {
				live.deliver(u, p)
			}
		}
		for p := range e.slot {
			if p > 0 && e.slot[p] >= 0 && !e.had[p] && !e.left[p] {
				rt.Fatalf("the effect of the event at %d was lost", p)
			}
		}
	})
	t.Logf("in %d histories: %v", runs, seen)
	for _, what := range []string{"refused", "switched", "switched with several borders"} {
		if runs >= 100 && seen[what] == 0 {
			t.Errorf("no run reached %q", what)
		}
	}
}

// What was passed without a type is no effect that a shadow would have later.
func TestShadowLacksNothing(t *testing.T) {
	if b := delivered.Shadow().Lack([]int64{5}); !b.IsShadow() || b.String() != delivered.Shadow().String() {
		t.Errorf("a shadow became %v", b)
	}
	taken := delivered.Borders{}.Pass(partition.All, "", 5, nil).Taken().Pass(partition.All, "", 9, nil)
	if b := taken.Lack([]int64{3, 7}); b.String() != `[{"first":0,"last":4095,"after":9,"except":[{"first":7,"last":7}],"other":5}]` {
		t.Errorf("a consumer that has taken over at 5 lacks %v", b)
	}
	if delivered.Borders(nil).IsShadow() {
		t.Error("a consumer without borders is a shadow")
	}
}
