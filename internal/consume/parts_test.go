package consume

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
)

// A consumer's position is that of its lowest part in this worker. A stopped part no longer
// counts.
func TestReachedIsLowestPart(t *testing.T) {
	whole := (&spec{consumerName: "c"}).unit(partition.All)
	w := &unitSet{units: []*unit{whole}}
	reached := func(want int64) {
		t.Helper()
		if at := w.reached(whole.spec); at != want {
			t.Errorf("it is at %d, want %d", at, want)
		}
	}
	reached(-1)
	whole.status.loaded(&progress.State{Position: 3})
	reached(3)
	low, high := w.unit("c#000-7ff"), w.unit("c#800-fff")
	reached(-1)
	high.status.loaded(&progress.State{Position: 9})
	reached(-1)
	low.status.loaded(&progress.State{Position: 5})
	reached(5)
	w.dropPart(whole)
	w.dropPart(low)
	reached(9)
	if w.unit("c") != whole || w.unit("c#800-fff") != high || w.unit("c#000-7ff") == low {
		t.Error("a part that has stopped comes back, or another one does not")
	}
}

// Each change of the assignments, and each check of waiting events, iterates over all
// units. With many consumers in many parts that must not take quadratic time.
func BenchmarkAllUnits(b *testing.B) {
	for _, consumers := range []int{50, 500} {
		b.Run(strconv.Itoa(consumers), func(b *testing.B) {
			w := &unitSet{}
			for i := range consumers {
				w.units = append(w.units, (&spec{consumerName: fmt.Sprintf("c%03d", i)}).unit(partition.All))
				for _, slots := range partition.Cut(8) {
					w.unit(partition.Name(fmt.Sprintf("c%03d", i), slots))
				}
			}
			for b.Loop() {
				if n := len(w.allUnits()); n != 9*consumers {
					b.Fatal(n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(9*consumers), "ns/unit")
		})
	}
}
