package console_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
)

// What is farther is drawn farther to the left, within the picture.
func TestScale(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		position := rapid.Int64Range(0, 1<<62)
		least, head := position.Draw(rt, "least"), position.Draw(rt, "head")
		a, b := position.Draw(rt, "a"), position.Draw(rt, "b")
		x, y := console.Drawn(least, head, min(a, b)), console.Drawn(least, head, max(a, b))
		if x > y || x < 0 || y > 1000 {
			rt.Fatalf("%d is drawn at %v and %d at %v", min(a, b), x, max(a, b), y)
		}
		if end := console.Drawn(least, head, head); end != 1000 {
			rt.Fatalf("the head is drawn at %v", end)
		}
	})
}

// The line of a consumer shows the last 15 minutes as they were kept, and nothing older. A
// model keeps everything.
func TestSparklines(t *testing.T) {
	point := regexp.MustCompile(`[ML](\d+) ([\d.]+)`)
	rapid.Check(t, func(rt *rapid.T) {
		var h console.History
		type key struct {
			name   string
			moment int64
		}
		model := map[key]int64{}
		now := time.Unix(rapid.Int64Range(1<<20, 1<<32).Draw(rt, "start"), 0)
		for range rapid.IntRange(0, 60).Draw(rt, "samples") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 2, 15, 40, 400, 2_000}).Draw(rt, "later")) * time.Second)
			var all []ops.Consumer
			for _, name := range []string{"a", "b"} {
				if rapid.Bool().Draw(rt, name) {
					lag := rapid.Int64Range(0, 5).Draw(rt, "lag")
					all = append(all, ops.Consumer{Name: name, HeadLag: lag})
					k := key{name, now.Unix() / 15}
					if before, ok := model[k]; !ok || lag > before {
						model[k] = lag
					}
				}
			}
			h.Add(all, now)
		}
		now = now.Add(time.Duration(rapid.IntRange(0, 1_000).Draw(rt, "then")) * time.Second)
		for _, name := range []string{"a", "b"} {
			want, most, last := map[string]int64{}, int64(0), now.Unix()/15
			for x := range int64(60) {
				if lag, ok := model[key{name, last - 59 + x}]; ok {
					want[fmt.Sprint(x)] = lag
					most = max(most, lag)
				}
			}
			path, text := h.Line(name, now)
			points := point.FindAllStringSubmatch(path, -1)
			if len(want) < 2 {
				want = nil
			} else if !strings.Contains(text, fmt.Sprintf("by %d at most", most)) {
				rt.Fatalf("%q, want the most to be %d", text, most)
			}
			if len(points) != len(want) {
				rt.Fatalf("%s: %d points, want %d: %s", name, len(points), len(want), path)
			}
			for _, p := range points {
				lag, ok := want[p[1]]
				if y := fmt.Sprintf("%.1f", 19-18*float64(lag)/float64(max(most, 1))); !ok || p[2] != y {
					rt.Fatalf("%s at %s: %s, want %s for %d of %d", name, p[1], p[2], y, lag, most)
				}
			}
		}
		if n, bound := h.Kept(), 2; n > bound {
			rt.Fatalf("%d consumers are kept", n)
		}
	})
}

// A consumer that is gone is forgotten, and what it had before is not shown of one of the
// same name.
func TestSparklinesForget(t *testing.T) {
	var h console.History
	now := time.Unix(1<<30, 0)
	for range 4 {
		h.Add([]ops.Consumer{{Name: "gone", HeadLag: 7}, {Name: "stays"}}, now)
		now = now.Add(15 * time.Second)
	}
	for range 60 {
		h.Add([]ops.Consumer{{Name: "stays"}}, now)
		now = now.Add(15 * time.Second)
	}
	if n := h.Kept(); n != 1 {
		t.Errorf("%d consumers are kept, want 1", n)
	}
	if path, _ := h.Line("gone", now); path != "" {
		t.Errorf("it is still drawn: %s", path)
	}
}
