package jobs

import (
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
)

// phase is where a run is in this worker.
type phase int

const (
	prefetched phase = iota // claimed, and not started
	running                 // its handler runs
	settling                // the settler has it
)

// hand has the runs that this worker has claimed, until the database knows how they
// ended.
type hand struct {
	mu      sync.Mutex
	runs    map[queue.Run]*run
	newest  map[int64]*run // by job: a claim that was lost may leave an older one
	overdue map[*run]bool  // given up, their handlers have not returned
}

func (h *hand) init() {
	h.runs, h.newest, h.overdue = map[queue.Run]*run{}, map[int64]*run{}, map[*run]bool{}
}

// add takes a run in. It returns another run of the same job, nil if there is none:
// its claim was lost.
func (h *hand) add(r *run) (older *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	older = h.newest[r.row.ID]
	h.runs[r.row.Run], h.newest[r.row.ID] = r, r
	return older
}

// enter moves runs to a phase.
func (h *hand) enter(p phase, runs ...*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		r.phase = p
	}
}

// call records that runs have their slots, and their handlers are called now.
func (h *hand) call(now time.Time, runs []*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		r.started = now
	}
}

// called returns the jobs that have slots, and those whose handlers were given up.
func (h *hand) called() (all []RunningJob) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.runs {
		if r.phase == running && !r.started.IsZero() && !h.overdue[r] {
			all = append(all, RunningJob{Header: r.header, Since: r.started})
		}
	}
	for r := range h.overdue {
		all = append(all, RunningJob{Header: r.header, Since: r.started, Overdue: true})
	}
	return all
}

// drop takes runs out.
func (h *hand) drop(runs ...*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		delete(h.runs, r.row.Run)
		if h.newest[r.row.ID] == r {
			delete(h.newest, r.row.ID)
		}
	}
}

// of returns the runs of a queue, with their phases.
func (h *hand) of(l *loop) map[queue.Run]phase {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[queue.Run]phase{}
	for k, r := range h.runs {
		if r.loop == l {
			all[k] = r.phase
		}
	}
	return all
}

// get returns a run and its phase now, nil if it has left.
func (h *hand) get(k queue.Run) (*run, phase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[k]
	if r == nil {
		return nil, 0
	}
	return r, r.phase
}

// gaveUp records that the handler of a run ignores the end of its context, and returned
// that it has returned after all, which may be known first.
func (h *hand) gaveUp(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.back {
		h.overdue[r] = true
	}
}

func (h *hand) returned(r *run) (slotSince time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.back = true
	delete(h.overdue, r)
	return r.started
}

// overdueOf counts the runs of a queue that were given up and whose handlers have not returned,
// and says since when the first of them has its slot.
func (h *hand) overdueOf(l *loop) (n int, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.overdue {
		if r.loop != l {
			continue
		}
		if n++; since.IsZero() || r.started.Before(since) {
			since = r.started
		}
	}
	return n, since
}

// overdueKinds are those of handlers that were given up and have not returned.
func (h *hand) overdueKinds() (kinds []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.overdue {
		kinds = append(kinds, r.row.Kind)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
