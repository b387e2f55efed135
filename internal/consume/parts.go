package consume

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/internal/partition"
)

// parts are the units of consumers that are split, as far as they are assigned to
// this worker: those of each consumer in order.
type parts struct {
	mu  sync.Mutex
	all map[*declared][]*unit
}

// unit returns a unit of this worker's consumers, nil if it is none.
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
	d := w.units[i].declared
	at, found := slices.BinarySearchFunc(w.parts.all[d], slots, func(u *unit, r partition.Range) int {
		return cmp.Or(cmp.Compare(u.slots.First, r.First), cmp.Compare(u.slots.Last, r.Last))
	})
	if !found {
		if w.parts.all == nil {
			w.parts.all = map[*declared][]*unit{}
		}
		w.parts.all[d] = slices.Insert(w.parts.all[d], at, d.unit(slots))
	}
	return w.parts.all[d][at]
}

// dropPart forgets a part that this worker has stopped.
func (w *Worker) dropPart(u *unit) {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	if u.isPart() {
		w.parts.all[u.declared] = slices.DeleteFunc(w.parts.all[u.declared], func(p *unit) bool { return p == u })
	}
}

// partsOf returns the parts of a consumer that this worker runs, in order.
func (w *Worker) partsOf(d *declared) []*unit {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	return slices.Clone(w.parts.all[d])
}

// allUnits returns the worker's consumers, each followed by the parts of it that
// this worker runs.
func (w *Worker) allUnits() (all []*unit) {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	for _, u := range w.units {
		all = append(append(all, u), w.parts.all[u.declared]...)
	}
	return all
}

// reached returns how far all that this worker runs of a consumer has been, -1 if
// some of it has not run yet.
func (w *Worker) reached(d *declared) int64 {
	parts := w.partsOf(d)
	if len(parts) == 0 {
		return w.unit(d.title).status.at()
	}
	at := parts[0].status.at()
	for _, u := range parts[1:] {
		at = min(at, u.status.at())
	}
	return at
}
