package delivered

import (
	"cmp"
	"slices"

	"github.com/pgfrontier/worker/store"
)

// sorted returns ranges in order, with adjacent and overlapping ranges joined.
func sorted(ranges []store.Range) (all []store.Range) {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b store.Range) int { return cmp.Compare(a.First, b.First) })
	for _, r := range ranges {
		if n := len(all); n > 0 && r.First <= all[n-1].Last+1 {
			all[n-1].Last = max(all[n-1].Last, r.Last)
		} else {
			all = append(all, r)
		}
	}
	return all
}

func union(a, b []store.Range) []store.Range { return sorted(slices.Concat(a, b)) }

// find returns the index of the first range that ends at or after a position.
func find(ranges []store.Range, position int64) int {
	i, _ := slices.BinarySearchFunc(ranges, position, func(r store.Range, p int64) int { return cmp.Compare(r.Last, p) })
	return i
}

func holds(ranges []store.Range, position int64) bool {
	i := find(ranges, position)
	return i < len(ranges) && ranges[i].First <= position
}

// overlap reports whether sorted ranges have a common position.
func overlap(a, b []store.Range) bool {
	return slices.ContainsFunc(b, func(r store.Range) bool {
		i := find(a, r.First)
		return i < len(a) && a[i].First <= r.Last
	})
}

// within returns the parts of sorted ranges that lie in one range.
func within(ranges []store.Range, in store.Range) (parts []store.Range) {
	for i := find(ranges, in.First); i < len(ranges) && ranges[i].First <= in.Last; i++ {
		parts = append(parts, store.Range{First: max(ranges[i].First, in.First), Last: min(ranges[i].Last, in.Last)})
	}
	return parts
}

// subtract returns the positions in a and not in b. Both are sorted.
func subtract(a, b []store.Range) (rest []store.Range) {
	for _, r := range a {
		for i := find(b, r.First); i < len(b) && b[i].First <= r.Last; i++ {
			if b[i].First > r.First {
				rest = append(rest, store.Range{First: r.First, Last: b[i].First - 1})
			}
			r.First = b[i].Last + 1
		}
		if r.First <= r.Last {
			rest = append(rest, r)
		}
	}
	return rest
}

// Without returns the positions in some and not in others.
func Without(some, others []store.Range) []store.Range { return subtract(sorted(some), sorted(others)) }
