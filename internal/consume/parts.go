package consume

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/internal/partition"
)

// unitSet is the set of units of this worker.
type unitSet struct {
	units []*unit // whole consumers, in order of name; set by prepare
	mu    sync.Mutex
	parts map[*spec][]*unit // that this worker runs, in order for each consumer
}

// unit returns a unit of this worker's consumers by name, or nil.
func (s *unitSet) unit(name string) *unit {
	title, slots, ok := partition.Parse(name)
	i, found := slices.BinarySearchFunc(s.units, title, func(u *unit, title string) int { return strings.Compare(u.name, title) })
	if !ok || !found {
		return nil
	}
	if slots == partition.All {
		return s.units[i]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.units[i].spec
	at, found := slices.BinarySearchFunc(s.parts[d], slots, func(u *unit, r partition.Range) int {
		return cmp.Or(cmp.Compare(u.slots.First, r.First), cmp.Compare(u.slots.Last, r.Last))
	})
	if !found {
		if s.parts == nil {
			s.parts = map[*spec][]*unit{}
		}
		s.parts[d] = slices.Insert(s.parts[d], at, d.unit(slots))
	}
	return s.parts[d][at]
}

// dropPart forgets a part whose loop has ended.
func (s *unitSet) dropPart(u *unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.isPart() {
		s.parts[u.spec] = slices.DeleteFunc(s.parts[u.spec], func(p *unit) bool { return p == u })
	}
}

// partsOf returns the parts of a consumer that this worker runs, in order.
func (s *unitSet) partsOf(d *spec) []*unit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.parts[d])
}

// allUnits returns the worker's consumers, each followed by its parts that this worker
// runs.
func (s *unitSet) allUnits() (all []*unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.units {
		all = append(append(all, u), s.parts[u.spec]...)
	}
	return all
}

// reached returns the lowest position of a consumer's units in this worker, or -1 if a unit
// has not loaded its progress yet.
func (s *unitSet) reached(d *spec) int64 {
	parts := s.partsOf(d)
	if len(parts) == 0 {
		return s.unit(d.consumerName).status.at()
	}
	at := parts[0].status.at()
	for _, u := range parts[1:] {
		at = min(at, u.status.at())
	}
	return at
}
