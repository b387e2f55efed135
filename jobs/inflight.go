package jobs

import (
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
)

// phase is the phase of a run in this worker.
type phase int

const (
	prefetched phase = iota // claimed, and not started
	running                 // its handler runs
	settling                // the settler stores its outcome
)

// inFlight holds the runs that this worker has claimed, until their outcome is stored.
type inFlight struct {
	mu      sync.Mutex
	runs    map[queue.Run]*run
	newest  map[int64]*run // by job: after a lost claim, an older run of the job may remain
	overdue map[*run]bool  // given up, and the handler has not returned
}

func (h *inFlight) init() {
	h.runs, h.newest, h.overdue = map[queue.Run]*run{}, map[int64]*run{}, map[*run]bool{}
}

// add adds a run. If another run of the same job is in flight, add returns it: that run has lost
// its claim.
func (h *inFlight) add(r *run) (older *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	older = h.newest[r.row.ID]
	h.runs[r.row.Run], h.newest[r.row.ID] = r, r
	return older
}

// enter moves runs to a phase.
func (h *inFlight) enter(p phase, runs ...*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		r.phase = p
	}
}

// call records that runs have their slots, and that their handlers are called at now.
func (h *inFlight) call(now time.Time, runs []*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range runs {
		r.started = now
	}
}

// called returns the jobs that hold slots, including those whose handlers were given up.
func (h *inFlight) called() (all []RunningJob) {
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

// drop removes runs.
func (h *inFlight) drop(runs ...*run) {
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
func (h *inFlight) of(l *loop) map[queue.Run]phase {
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

// get returns a run and its current phase. The run is nil if it is no longer in flight.
func (h *inFlight) get(k queue.Run) (*run, phase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[k]
	if r == nil {
		return nil, 0
	}
	return r, r.phase
}

// gaveUp records that the handler of a run was given up. The handler may return before gaveUp is
// called.
func (h *inFlight) gaveUp(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.back {
		h.overdue[r] = true
	}
}

func (h *inFlight) returned(r *run) (slotSince time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.back = true
	delete(h.overdue, r)
	return r.started
}

// overdueOf counts the runs of a queue that were given up and whose handlers have not returned.
// since is when the first of them got its slot.
func (h *inFlight) overdueOf(l *loop) (n int, since time.Time) {
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

// overdueKinds returns the kinds whose handlers were given up and have not returned.
func (h *inFlight) overdueKinds() (kinds []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.overdue {
		kinds = append(kinds, r.row.Kind)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
