package worker

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

// A page holds exactly the wanted visible events up to where it reaches, and
// sums up exactly the positions without an event.
func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const last = 40
		visible := map[int64]string{}
		for p := int64(1); p <= last; p++ {
			if kind := rapid.SampledFrom([]string{"", "A", "A", "B"}).Draw(t, "type"); kind != "" {
				visible[p] = kind
			}
		}
		after := rapid.Int64Range(0, last-1).Draw(t, "after")
		safe := rapid.Int64Range(after+1, last).Draw(t, "safe")
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		onlyA := rapid.Bool().Draw(t, "only A")
		wants := func(aggregateType string) bool { return !onlyA || aggregateType == "A" }

		var read []store.PersistedEvent // as ReadEvents answers
		for p := after + 1; p <= last && len(read) < limit; p++ {
			if visible[p] != "" {
				read = append(read, store.PersistedEvent{GlobalPosition: p, AggregateType: visible[p]})
			}
		}
		exhausted := len(read) < limit || read[limit-1].GlobalPosition >= safe
		page := cut(slices.Clone(read), after, safe, limit, wants)

		if page.look.Through <= after || page.look.Through > safe {
			t.Fatalf("the page reaches %d, outside (%d, %d]", page.look.Through, after, safe)
		}
		if page.full == exhausted {
			t.Fatalf("full is %v, but all was read: %v", page.full, exhausted)
		}
		if exhausted != (page.look.Through == safe) {
			t.Fatalf("the page reaches %d of %d, but all was read: %v", page.look.Through, safe, exhausted)
		}
		var want []int64
		var missing []int64
		for p := after + 1; p <= page.look.Through; p++ {
			switch {
			case visible[p] == "":
				missing = append(missing, p)
			case wants(visible[p]):
				want = append(want, p)
			}
		}
		var got []int64
		for _, e := range page.events {
			got = append(got, e.GlobalPosition)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("events %v, want %v", got, want)
		}
		var gaps []int64
		for _, g := range page.look.Missing {
			for p := g.First; p <= g.Last; p++ {
				gaps = append(gaps, p)
			}
		}
		if !slices.Equal(gaps, missing) {
			t.Fatalf("gaps %v, want %v", gaps, missing)
		}
	})
}
