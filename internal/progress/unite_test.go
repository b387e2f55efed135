package progress

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

// United ranges cover the positions of all units, each once and in order. Each has the first
// time of its positions and the number of units that watch it.
func TestUnite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type watch struct {
			by   int
			seen int64
		}
		want := map[int64]watch{}
		var found []Watched
		for range rapid.IntRange(0, 5).Draw(t, "units") {
			for at := int64(1); at < 40; {
				first := at + rapid.Int64Range(0, 10).Draw(t, "gap")
				w := Watched{Range: store.Range{First: first, Last: first + rapid.Int64Range(0, 10).Draw(t, "width")}, Seen: rapid.Int64Range(1, 3).Draw(t, "seen")}
				for p := w.First; p <= w.Last; p++ {
					if was := want[p]; was.by == 0 {
						want[p] = watch{1, w.Seen}
					} else {
						want[p] = watch{was.by + 1, min(was.seen, w.Seen)}
					}
				}
				found, at = append(found, w), w.Last+1
			}
		}
		all := unite(rapid.Permutation(found).Draw(t, "order"))
		last := int64(0)
		for _, w := range all {
			if w.First <= last || w.Last < w.First {
				t.Fatalf("%+v overlap or are not in order", all)
			}
			for p := w.First; p <= w.Last; p++ {
				if want[p] != (watch{w.by, w.Seen}) {
					t.Fatalf("%d is %+v, want %+v: %+v of %+v", p, w, want[p], all, found)
				}
				delete(want, p)
			}
			last = w.Last
		}
		if len(want) > 0 {
			t.Fatalf("%v are not in %+v", want, all)
		}
	})
}
