package frontier

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/store"
)

const small = 40 // positions in the tests that compare with sets

// drawSpans draws ascending, disjoint spans, some of them adjacent.
func drawSpans(t *rapid.T, label string, last int64) []store.Range {
	var spans []store.Range
	for at := int64(1); at <= last; {
		at += rapid.Int64Range(0, 6).Draw(t, label+" gap")
		end := at + rapid.Int64Range(0, 6).Draw(t, label+" length")
		if end > last {
			break
		}
		spans = append(spans, store.Range{First: at, Last: end})
		at = end + 1
	}
	return spans
}

// members returns the positions of spans, one by one.
func members(spans []store.Range) map[int64]bool {
	set := map[int64]bool{}
	for _, s := range spans {
		for p := s.First; p <= s.Last; p++ {
			set[p] = true
		}
	}
	return set
}

func checkForm(t *rapid.T, what string, spans []store.Range) {
	for i, s := range spans {
		if s.First > s.Last || i > 0 && s.First <= spans[i-1].Last {
			t.Fatalf("%s: %v is not ascending and disjoint", what, spans)
		}
	}
}

func TestSpansAreSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawSpans(t, "a", small), drawSpans(t, "b", small)
		first := rapid.Int64Range(-2, small).Draw(t, "first")
		window := store.Range{First: first, Last: first + rapid.Int64Range(-2, small).Draw(t, "length")}
		inA, inB := members(a), members(b)
		for what, c := range map[string]struct {
			got  []store.Range
			want func(p int64) bool
		}{
			"intersect": {intersect(a, b), func(p int64) bool { return inA[p] && inB[p] }},
			"subtract":  {subtract(a, b), func(p int64) bool { return inA[p] && !inB[p] }},
			"within":    {intersect(within(a, window), []store.Range{window}), func(p int64) bool { return inA[p] && window.First <= p && p <= window.Last }},
		} {
			checkForm(t, what, c.got)
			got := members(c.got)
			for p := int64(-5); p <= 2*small; p++ {
				if got[p] != c.want(p) {
					t.Fatalf("%s of %v and %v (window %v) is %v: wrong about %d", what, a, b, window, c.got, p)
				}
			}
		}
		var again []store.Range
		for _, p := range slices.Sorted(maps.Keys(inA)) {
			again = appendPosition(again, p)
		}
		for i := range again {
			if i > 0 && again[i].First == again[i-1].Last+1 {
				t.Fatalf("positions of %v one by one are %v: some could be one span", a, again)
			}
		}
		if !maps.Equal(members(again), inA) {
			t.Fatalf("positions of %v one by one are %v", a, again)
		}
	})
}

// TestCrossDecidesEachPosition compares Cross with the rules for each single position.
func TestCrossDecidesEachPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Page{Checkpoint: rapid.Int64Range(0, small).Draw(t, "checkpoint")}
		p.Through = rapid.Int64Range(0, small).Draw(t, "through")
		p.Open = drawSpans(t, "open", p.Checkpoint)
		if p.Through > p.Checkpoint {
			p.Missing = intersect(drawSpans(t, "missing", small), []store.Range{{First: p.Checkpoint + 1, Last: p.Through}})
		}
		for _, position := range slices.Sorted(maps.Keys(members(p.Open))) {
			if readAt(p, position) && rapid.Bool().Draw(t, "found") {
				p.Found = append(p.Found, position)
			}
		}
		v := Value{Safe: rapid.Int64Range(0, small).Draw(t, "safe"), Doubts: drawSpans(t, "doubts", small)}
		v.Doubts = intersect(v.Doubts, []store.Range{{First: 1, Last: v.Safe}})
		c := v.Cross(p)

		if want := max(p.Checkpoint, min(p.Through, v.Safe)); c.To != want {
			t.Fatalf("To is %d, want %d", c.To, want)
		}
		checkPassed(t, &v, p, c)
		checkOpen(t, &v, p, c)
	})
}

// readAt reports whether the read was complete at an open position.
func readAt(p Page, open int64) bool { return open <= p.Through || p.Through >= p.Checkpoint }

func checkPassed(t *rapid.T, v *Value, p Page, c Crossing) {
	checkForm(t, "Opened", c.Opened)
	missing, doubted, opened := members(p.Missing), members(v.Doubts), members(c.Opened)
	var void store.Missing
	for position := int64(1); position <= small; position++ {
		passed := missing[position] && position <= c.To
		if want := passed && doubted[position]; opened[position] != want {
			t.Fatalf("position %d: opened %v, want %v", position, opened[position], want)
		}
		if passed && !doubted[position] {
			if void.Count == 0 {
				void.First = position
			}
			void.Last = position
			void.Count++
		}
	}
	if c.Void != void {
		t.Fatalf("Void is %+v, want %+v", c.Void, void)
	}
}

func checkOpen(t *rapid.T, v *Value, p Page, c Crossing) {
	doubted, found := members(v.Doubts), members(nil)
	for _, position := range p.Found {
		found[position] = true
	}
	closed := map[int]Closed{}
	for _, cl := range c.Closed {
		closed[cl.Index] = cl
	}
	for i, open := range p.Open {
		cl, touched := closed[i]
		if !touched {
			cl.Remains = []store.Range{open}
		}
		late, void, remains := members(cl.Late), members(cl.Void), members(cl.Remains)
		changed := false
		for position := open.First; position <= open.Last; position++ {
			isVoid := !found[position] && readAt(p, position) && position <= v.Safe && !doubted[position]
			if late[position] != found[position] || void[position] != isVoid || remains[position] != (!found[position] && !isVoid) {
				t.Fatalf("position %d of open %v: %+v", position, open, cl)
			}
			changed = changed || found[position] || isVoid
		}
		if changed != touched {
			t.Fatalf("open %v: changed %v, reported %v", open, changed, touched)
		}
	}
}

func TestCrossTakesRangesOfAnyLength(t *testing.T) {
	const far = 1_000_000_000_000
	v := &Value{Safe: far, Doubts: []store.Range{{First: 10, Last: 19}}}
	c := v.Cross(Page{
		Checkpoint: 5, Through: far,
		Missing: []store.Range{{First: 6, Last: far - 1}},
		Open:    []store.Range{{First: 1, Last: 3}},
		Found:   []int64{2},
	})
	want := Crossing{
		To:     far,
		Void:   store.Missing{Range: store.Range{First: 6, Last: far - 1}, Count: far - 6 - 10},
		Opened: []store.Range{{First: 10, Last: 19}},
		Closed: []Closed{{Index: 0, Late: []store.Range{{First: 2, Last: 2}}, Void: []store.Range{{First: 1, Last: 1}, {First: 3, Last: 3}}}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Fatalf("got  %+v\nwant %+v", c, want)
	}
}

func TestInDoubt(t *testing.T) {
	v := &Value{Safe: 100, Doubts: []store.Range{{First: 10, Last: 19}, {First: 30, Last: 39}, {First: 90, Last: 99}}}
	if got, want := v.InDoubt(15, 35), []store.Range{{First: 16, Last: 19}, {First: 30, Last: 35}}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if got := v.InDoubt(19, 29); len(got) > 0 {
		t.Fatalf("got %v, want none", got)
	}
}

// BenchmarkCross measures a consumer at the default limit of open ranges.
func BenchmarkCross(b *testing.B) {
	const n = 10_000
	v := &Value{Safe: 100 * n}
	p := Page{Checkpoint: 90 * n, Through: 90*n + 100}
	for i := int64(1); i <= 9*n; i++ {
		v.Doubts = append(v.Doubts, store.Range{First: 10 * i, Last: 10*i + 2})
		if i <= n {
			p.Open = append(p.Open, store.Range{First: 10 * i, Last: 10*i + 2})
		}
	}
	for b.Loop() {
		v.Cross(p)
	}
}
