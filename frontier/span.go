package frontier

import (
	"sort"

	"github.com/pgfrontier/worker/store"
)

// The functions below take and return ascending, disjoint ranges. Their cost depends on the
// number of ranges, not on the number of positions.

func covers(a, b store.Range) bool { return a.First <= b.First && b.Last <= a.Last }

// within returns the spans that overlap s, uncut.
func within(spans []store.Range, s store.Range) []store.Range {
	first := sort.Search(len(spans), func(i int) bool { return spans[i].Last >= s.First })
	spans = spans[first:]
	end := sort.Search(len(spans), func(i int) bool { return spans[i].First > s.Last })
	return spans[:end]
}

// intersect returns the positions in both a and b.
func intersect(a, b []store.Range) []store.Range {
	var both []store.Range
	for len(a) > 0 && len(b) > 0 {
		if s := (store.Range{First: max(a[0].First, b[0].First), Last: min(a[0].Last, b[0].Last)}); s.First <= s.Last {
			both = append(both, s)
		}
		if a[0].Last < b[0].Last {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return both
}

// subtract returns the positions in a and not in b.
func subtract(a, b []store.Range) []store.Range {
	var rest []store.Range
	for _, s := range a {
		for len(b) > 0 && b[0].Last < s.First {
			b = b[1:]
		}
		for _, hole := range b {
			if hole.First > s.Last {
				break
			}
			if hole.First > s.First {
				rest = append(rest, store.Range{First: s.First, Last: hole.First - 1})
			}
			s.First = hole.Last + 1
		}
		if s.First <= s.Last {
			rest = append(rest, s)
		}
	}
	return rest
}

// appendPosition adds a position that is above all others.
func appendPosition(spans []store.Range, position int64) []store.Range {
	if n := len(spans); n > 0 && spans[n-1].Last == position-1 {
		spans[n-1].Last = position
		return spans
	}
	return append(spans, store.Range{First: position, Last: position})
}
