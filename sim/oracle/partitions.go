package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// slots is how many slots the keys of a consumer hash to.
const slots = 4096

// partitioned tells which consumers are split and merged.
func partitioned(e *history.Evidence) map[string]bool {
	all := map[string]bool{}
	for _, c := range e.Consumers {
		if c.Partitioned {
			all[c.Name] = true
		}
	}
	return all
}

// unit is a standing of one of a consumer's units, and its slots.
type unit struct {
	history.Standing
	first, last int
}

// unitsOf returns the units of a consumer among standings, in order of slots. ok is
// false for a name that no unit has.
func unitsOf(standings []history.Standing, consumer string) (all []unit, ok bool) {
	for _, s := range standings {
		name, part, split := strings.Cut(s.Consumer, "#")
		u := unit{s, 0, slots - 1}
		switch {
		case name != consumer:
			continue
		case !split:
		default:
			if n, err := fmt.Sscanf(part, "%3x-%3x", &u.first, &u.last); n != 2 || err != nil || len(part) != 7 {
				return nil, false
			}
		}
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b unit) int { return cmp.Compare(a.first, b.first) })
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
	next := 0
	for _, u := range units {
		if u.first != next || u.last < u.first {
			return false
		}
		next = u.last + 1
	}
	return next == slots
}

// partitions finds keys that no unit of a consumer has, or that two have, and
// units that replaced others without counting as newer.
func partitions(e *history.Evidence) Finding {
	f := Finding{Name: "partitions", Rule: "the units of a consumer had each key once at every moment; whoever had a key afterwards stood no further back, at a higher revision; in the end there were as many as wanted"}
	for _, c := range e.Consumers {
		if !c.Partitioned {
			continue
		}
		var before []unit
		samples := append(slices.Clone(e.Samples), e.Rest.Standings)
		for _, sample := range samples {
			now, ok := unitsOf(sample, c.Name)
			if len(now) == 0 && ok {
				continue // nobody has placed it yet
			}
			f.check(ok && tile(now), func() string { return fmt.Sprintf("the units of %s were %q", c.Name, names(now)) })
			for _, b := range before {
				for _, n := range now {
					if n.last < b.first || b.last < n.first || e.Forgetful && n.Life != b.Life || restoredBetween(e, b.Life, n.Life) || undone(e, n.Life) {
						continue
					}
					f.check(n.Checkpoint >= b.Checkpoint && (n.Revision > b.Revision || n.Revision == b.Revision && n.Consumer == b.Consumer), func() string {
						return fmt.Sprintf("%s at position %d, revision %d was followed by %s at %d, %d", b.Consumer, b.Checkpoint, b.Revision, n.Consumer, n.Checkpoint, n.Revision)
					})
				}
			}
			before = now
		}
		last, _ := unitsOf(e.Rest.Standings, c.Name)
		f.check(len(last) == e.Rest.Partitions, func() string {
			return fmt.Sprintf("the units of %s were %q in the end, %d partitions were wanted", c.Name, names(last), e.Rest.Partitions)
		})
	}
	return f
}

// restOfParts checks that the units of a consumer came to rest at the head.
func (f *Finding) restOfParts(r history.Rest, consumer string) {
	units, _ := unitsOf(r.Standings, consumer)
	f.check(tile(units), func() string { return fmt.Sprintf("%s has the units %q", consumer, names(units)) })
	for _, u := range units {
		f.check(u.Checkpoint == r.Head && len(u.Open) == 0, func() string {
			return fmt.Sprintf("%s stands at %d with %d ranges in doubt, the head is %d, after %v", u.Consumer, u.Checkpoint, len(u.Open), r.Head, r.Took)
		})
	}
}
