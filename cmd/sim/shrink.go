package main

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/pgfrontier/worker/sim"
)

// shrink walks from a run that fails to smaller ones that fail, as long as
// there are any one step away. It takes bold steps first, since each one costs
// some runs. It never returns what was not seen to fail, and ends early with
// the error of fails.
func shrink(c sim.Config, fails func(sim.Config) (bool, error)) (sim.Config, error) {
	known := map[string]bool{}
	for smaller := true; smaller; {
		smaller = false
		for part := 1; ; part *= 2 {
			for next, more := first(c, part, known); more; next, more = first(c, part, known) {
				known[name(next)] = true
				failed, err := fails(next)
				if err != nil {
					return c, err
				}
				if failed {
					c, smaller = next, true
				}
			}
			if finest(c, part) {
				break
			}
		}
	}
	return c, nil
}

// first is the first of the smaller runs that is not known yet.
func first(c sim.Config, part int, known map[string]bool) (sim.Config, bool) {
	for next := range smaller(c, part) {
		if !known[name(next)] {
			return next, true
		}
	}
	return c, false
}

// name tells settings apart.
func name(c sim.Config) string {
	return fmt.Sprintf("%d %d %d %v %v", c.Workers, c.Writers, c.Consumers, c.Duration, c.Faults)
}

// shortest is the shortest run that is tried, in whole seconds.
const shortest = 2

// sizes are what can be made smaller in numbers: what it is, and its least.
func sizes(c *sim.Config) []size {
	all := []size{
		{int(c.Duration / time.Second), shortest, func(n int) { c.Duration = time.Duration(n) * time.Second }},
		{c.Writers, 1, func(n int) { c.Writers = n }},
		{c.Workers, 1, func(n int) { c.Workers = n }},
	}
	if !c.Jobs { // which have no consumers
		all = append(all, size{c.Consumers, 1, func(n int) { c.Consumers = n }})
	}
	return all
}

type size struct {
	now, least int
	set        func(int)
}

// smaller are the runs one step below c: without one of so many parts of the
// faults, or nearer by such a part to the least of a size.
func smaller(c sim.Config, parts int) iter.Seq[sim.Config] {
	return func(yield func(sim.Config) bool) {
		for i, s := range sizes(&c) {
			if s.now <= s.least {
				continue
			}
			next := c
			sizes(&next)[i].set(s.now - share(s.now-s.least, parts))
			if !yield(next) {
				return
			}
		}
		on := slices.Sorted(maps.Keys(c.Faults))
		for dropped := range slices.Chunk(on, max(1, share(len(on), parts))) {
			next := c
			next.Faults = maps.Clone(c.Faults)
			for _, fault := range dropped {
				delete(next.Faults, fault)
			}
			if !yield(next) {
				return
			}
		}
	}
}

// share is one of so many parts of n, rounded up.
func share(n, parts int) int { return (n + parts - 1) / parts }

// finest reports that there is no smaller step than one of so many parts.
func finest(c sim.Config, parts int) bool {
	most := len(c.Faults)
	for _, s := range sizes(&c) {
		most = max(most, s.now-s.least)
	}
	return share(most, parts) <= 1
}
