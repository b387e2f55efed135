package oracle

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
)

// Of two versions of a consumer, either may have an effect, but not both or none. An operator may
// let one of them leave it out.
func TestEffectsOverVersions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := flawless(t)
		e.Consumers = append(e.Consumers, history.Scope{Name: "next", NextOf: "all"})
		ofAll := map[int64]int{} // by position
		for i, x := range e.Ledger {
			if x.Consumer != "all" {
				continue
			}
			ofAll[x.Position] = i
			next := x
			next.Consumer, next.Batch = "next", "next"
			next.Replay = rapid.Bool().Draw(t, "by the first version")
			e.Ledger[i].Replay = !next.Replay
			e.Ledger = append(e.Ledger, next)
		}
		if f := effects(e); !f.Holds() {
			t.Fatalf("broken %d times: %v", f.Broken, f.Examples)
		}
		event := rapid.SampledFrom(e.Committed).Draw(t, "event")
		at := ofAll[event.Position]
		e.Ledger[at].Replay = !e.Ledger[at].Replay // by both, or by none
		doubled := !e.Ledger[at].Replay
		if f := effects(e); f.Broken != 1 {
			t.Fatalf("an effect of %v by both: %v; broken %d times: %v", event, doubled, f.Broken, f.Examples)
		}
		e.Operations = append(slices.Clip(e.Operations), history.Operation{Consumer: "all", Kind: history.OperationSkip, To: event.Position})
		if f := effects(e); f.Holds() == doubled {
			t.Fatalf("%v was left out by an operator, and by both: %v; broken %d times: %v", event, doubled, f.Broken, f.Examples)
		}
	})
}
