package frontier

import "sort"

// Count returns how many positions the span has.
func (s Span) Count() int64 { return s.Last - s.First + 1 }

func (s Span) covers(other Span) bool { return s.First <= other.First && other.Last <= s.Last }

// The functions below take ascending, disjoint spans and return such. They
// never touch a single position: a span of a billion costs what one of two
// does.

// within returns the spans that meet s, uncut.
func within(spans []Span, s Span) []Span {
	first := sort.Search(len(spans), func(i int) bool { return spans[i].Last >= s.First })
	spans = spans[first:]
	end := sort.Search(len(spans), func(i int) bool { return spans[i].First > s.Last })
	return spans[:end]
}

// intersect returns what both a and b cover.
func intersect(a, b []Span) []Span {
	var both []Span
	for len(a) > 0 && len(b) > 0 {
		if s := (Span{max(a[0].First, b[0].First), min(a[0].Last, b[0].Last)}); s.First <= s.Last {
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

// subtract returns what a covers and b does not.
func subtract(a, b []Span) []Span {
	var rest []Span
	for _, s := range a {
		for len(b) > 0 && b[0].Last < s.First {
			b = b[1:]
		}
		for _, hole := range b {
			if hole.First > s.Last {
				break
			}
			if hole.First > s.First {
				rest = append(rest, Span{s.First, hole.First - 1})
			}
			s.First = hole.Last + 1
		}
		if s.First <= s.Last {
			rest = append(rest, s)
		}
	}
	return rest
}

// appendPosition adds a position above all others.
func appendPosition(spans []Span, position int64) []Span {
	if n := len(spans); n > 0 && spans[n-1].Last == position-1 {
		spans[n-1].Last = position
		return spans
	}
	return append(spans, Span{position, position})
}
