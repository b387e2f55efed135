package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// unit is a standing of one of a consumer's units, and its slots.
type unit struct {
	history.Standing
	slots history.Span
}

// unitsOf returns the units of a consumer among standings, in order of slots. ok is
// false for a name that no unit has.
func unitsOf(standings []history.Standing, consumer string) (all []unit, ok bool) {
	for _, s := range standings {
		name, _, _ := strings.Cut(s.Consumer, "#")
		if name != consumer {
			continue
		}
		_, slots, ok := slotsOf(s.Consumer)
		if !ok {
			return nil, false
		}
		all = append(all, unit{s, slots})
	}
	slices.SortFunc(all, func(a, b unit) int { return cmp.Compare(a.slots.First, b.slots.First) })
	return all, true
}

func names(units []unit) (all []string) {
	for _, u := range units {
		all = append(all, u.Consumer)
	}
	return all
}

// tile reports whether units have each slot once.
func tile(units []unit) bool {
	next := int64(0)
	for _, u := range units {
		if u.slots.First != next {
			return false
		}
		next = u.slots.Last + 1
	}
	return next == slots
}

// partitions finds keys that no unit of a consumer has, or that two have, and
// units that replaced others without counting as newer. How far they stood, and in
// which order they handled, is judged by range.
func partitions(e *history.Evidence) Finding {
	f := Finding{Name: "partitions", Rule: "the units of a consumer had each key once at every moment; a unit that had a key afterwards stood at a higher revision; in the end there were as many as wanted"}
	for _, c := range e.Consumers {
		if !c.Partitioned {
			continue
		}
		var before []unit
		for _, sample := range append(slices.Clone(e.Samples), e.Rest.Standings) {
			now, ok := unitsOf(sample, c.Name)
			if len(now) == 0 && ok {
				continue // nobody has placed it yet
			}
			f.check(ok && tile(now), func() string { return fmt.Sprintf("the units of %s were %q", c.Name, names(now)) })
			for _, b := range before {
				for _, n := range now {
					f.newer(e, b, n)
				}
			}
			before = now
		}
		if e.Incomplete {
			continue
		}
		last, _ := unitsOf(e.Rest.Standings, c.Name)
		f.check(len(last) == e.Rest.Partitions, func() string {
			return fmt.Sprintf("the units of %s were %q in the end, %d partitions were wanted", c.Name, names(last), e.Rest.Partitions)
		})
	}
	return f
}

// newer checks the revision of a unit that has replaced another with some of the same keys.
func (f *Finding) newer(e *history.Evidence, before, now unit) {
	switch {
	case now.Consumer == before.Consumer, now.slots.Last < before.slots.First, before.slots.Last < now.slots.First:
	case e.Forgetful && now.Life != before.Life, restoredBetween(e, before.Life, now.Life), undone(e, now.Life):
	default:
		f.check(now.Revision > before.Revision, func() string {
			return fmt.Sprintf("%s at revision %d was followed by %s at %d", before.Consumer, before.Revision, now.Consumer, now.Revision)
		})
	}
}
