package worker

import (
	"slices"
	"strings"
	"sync"

	"github.com/pgfrontier/worker/internal/partition"
)

// parts are the units of consumers that are split, as far as they are assigned to
// this worker.
type parts struct {
	mu  sync.Mutex
	all map[string]*unit
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
	u := w.parts.all[name]
	if u == nil {
		u = w.units[i].declared.unit(slots)
		if w.parts.all == nil {
			w.parts.all = map[string]*unit{}
		}
		w.parts.all[name] = u
	}
	return u
}

// dropPart forgets a part that this worker has stopped.
func (w *Worker) dropPart(u *unit) {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	if u.isPart() {
		delete(w.parts.all, u.name)
	}
}

// partsOf returns the parts of a consumer that this worker runs, in order.
func (w *Worker) partsOf(d *declared) (all []*unit) {
	w.parts.mu.Lock()
	defer w.parts.mu.Unlock()
	for _, u := range w.parts.all {
		if u.declared == d {
			all = append(all, u)
		}
	}
	slices.SortFunc(all, func(a, b *unit) int { return a.slots.First - b.slots.First })
	return all
}

// allUnits returns the worker's consumers, each followed by the parts of it that
// this worker runs.
func (w *Worker) allUnits() (all []*unit) {
	for _, u := range w.units {
		all = append(append(all, u), w.partsOf(u.declared)...)
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
