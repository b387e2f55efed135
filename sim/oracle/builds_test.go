package oracle

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
)

// taken draws a consumer that builds with and without the type "account" took past accounts
// in turn. Each position is one; doubtful are those that were in doubt at a change.
func taken(t *rapid.T) (e *history.Evidence, wide, doubtful map[int64]bool) {
	e = &history.Evidence{Consumers: []history.Scope{{Name: "grown", Types: []string{"order"}, Sometimes: []string{"account"}}, {Name: "all"}}}
	wide, doubtful = map[int64]bool{}, map[int64]bool{}
	position := int64(0)
	for n := range rapid.IntRange(1, 5).Draw(t, "builds") {
		s := history.Selected{Consumer: "grown", Types: []string{"order"}}
		if (n%2 == 0) == rapid.Bool().Draw(t, "wide") {
			s.Types = append(s.Types, "account")
		}
		for range rapid.IntRange(1, 6).Draw(t, "events") {
			position++
			wide[position] = len(s.Types) == 2
			a := history.Event{Position: position, Type: "account", ID: "1", Version: position, EventID: uuid.New()}
			e.Committed = append(e.Committed, a)
			if wide[position] {
				e.Ledger = append(e.Ledger, history.Entry{Event: a, Consumer: "grown", Batch: "1"})
			}
		}
		if rapid.Bool().Draw(t, "doubt") {
			s.Open, doubtful[position] = []history.Span{{First: position, Last: position}}, true
		}
		s.To = position
		e.Selected = append(e.Selected, s)
	}
	return e, wide, doubtful
}

func TestBuilds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, wide, doubtful := taken(t)
		if f := builds(e); !f.Holds() || f.Checks != int64(len(e.Committed)+len(e.Selected)-1) {
			t.Fatalf("%d checks, broken %d times: %v", f.Checks, f.Broken, f.Examples)
		}
		a := rapid.SampledFrom(e.Committed).Draw(t, "event")
		is := func(x history.Entry) bool { return x.Event == a }
		entry := history.Entry{Event: a, Consumer: "grown", Batch: "2"}
		broken := int64(1)
		if wide[a.Position] {
			e.Ledger = slices.DeleteFunc(e.Ledger, is)
		} else {
			e.Ledger = append(e.Ledger, entry)
		}
		if doubtful[a.Position] {
			broken = 0
		}
		if f := builds(e); f.Broken != broken {
			t.Fatalf("position %d applied by the wrong build, or not by the right one: broken %d times, want %d: %v", a.Position, f.Broken, broken, f.Examples)
		}
		e.Ledger = append(slices.DeleteFunc(e.Ledger, is), entry, entry)
		if f := builds(e); f.Broken != 1 {
			t.Fatalf("position %d applied twice: broken %d times", a.Position, f.Broken)
		}
		e.Repairs = []history.Repair{{Consumer: "grown", From: a.Position, To: a.Position - 1}}
		e.Breaches = []history.Breach{{Consumer: "grown", Batch: "2"}}
		if f := builds(e); f.Broken != 0 {
			t.Fatalf("position %d applied again after its handler had broken the rules: %v", a.Position, f.Examples)
		}
	})
}

// A build that takes a consumer over from one that lives, and goes first, gives it back before
// its next batch.
func TestContestedTakeOvers(t *testing.T) {
	for end, broken := range map[int64]int64{20: 0, 21: 1} {
		e := &history.Evidence{Selected: []history.Selected{
			{Consumer: "grown", To: 20, Types: []string{"account", "order"}, Contested: true},
			{Consumer: "other", To: 99},
			{Consumer: "grown", To: end, Types: []string{"order"}},
			{Consumer: "grown", To: 30, Types: []string{"account", "order"}},
		}}
		if f := builds(e); f.Broken != broken {
			t.Errorf("the narrow build stopped at %d: broken %d times, want %d: %v", end, f.Broken, broken, f.Examples)
		}
	}
}
