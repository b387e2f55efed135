package consume

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/internal/partition"
)

// parts are the units of split consumers that this worker runs, in order for each consumer.
type parts struct {
	mu  sync.Mutex
	all map[*spec][]*unit
}

// unit returns a unit of this worker's consumers by name, or nil.
func (w *Worker) unit(name string) *unit {
	title, slots, ok := partition.Parse(name)
	i, found := slices.BinarySearchFunc(w.units, title, func(u *unit, title string) int { return strings.Compare(u.name, title) })
	if !ok || !found {
		return nil
	}
	if slots == partition.All {
		return w.units[i]
	}
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	d := w.units[i].spec
	at, found := slices.BinarySearchFunc(w.parts.all[d], slots, func(u *unit, r partition.Range) int {
		return cmp.Or(cmp.Compare(u.slots.First, r.First), cmp.Compare(u.slots.Last, r.Last))
	})
	if !found {
		if w.parts.all == nil {
			w.parts.all = map[*spec][]*unit{}
		}
		w.parts.all[d] = slices.Insert(w.parts.all[d], at, d.unit(slots))
	}
	return w.parts.all[d][at]
}

// dropPart forgets a part whose loop has ended.
func (w *Worker) dropPart(u *unit) {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	if u.isPart() {
		w.parts.all[u.spec] = slices.DeleteFunc(w.parts.all[u.spec], func(p *unit) bool { return p == u })
	}
}

// partsOf returns the parts of a consumer that this worker runs, in order.
func (w *Worker) partsOf(d *spec) []*unit {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	return slices.Clone(w.parts.all[d])
}

// allUnits returns the worker's consumers, each followed by its parts that this worker
// runs.
func (w *Worker) allUnits() (all []*unit) {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	for _, u := range w.units {
		all = append(append(all, u), w.parts.all[u.spec]...)
	}
	return all
}

// reached returns the lowest position of a consumer's units in this worker, or -1 if a unit
// has not loaded its progress yet.
func (w *Worker) reached(d *spec) int64 {
	parts := w.partsOf(d)
	if len(parts) == 0 {
		return w.unit(d.consumerName).status.at()
	}
	at := parts[0].status.at()
	for _, u := range parts[1:] {
		at = min(at, u.status.at())
	}
	return at
}
