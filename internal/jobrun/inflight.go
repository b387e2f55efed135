package jobrun

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/queue"
)

// Phase is the phase of a run in its worker.
type Phase int

const (
	Claimed  Phase = iota // its handler was not called
	Running               // its handler was called
	Settling              // its outcome is to be stored
)

// Run is a job that a worker has claimed. The run of a package embeds it.
type Run struct {
	Claim queue.Run // the claim, which no other run has

	back bool // the handler was given up, and has returned; guarded by InFlight

	mu     sync.Mutex
	phase  Phase
	called time.Time               // when the run got its slot
	cancel context.CancelCauseFunc // ends the context of the run; nil before the run, and in a batch
	ended  error                   // why the context was to end
	gaveUp bool
}

func (r *Run) base() *Run { return r }

// End ends the context of the run, or makes the context end as soon as the run has one.
func (r *Run) End(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.ended = why
	}
	if r.cancel != nil {
		r.cancel(why)
	}
}

// Begin gives the run the function that ends its context.
func (r *Run) Begin(cancel context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel = cancel; r.ended != nil {
		cancel(r.ended)
	}
}

// Call records that the run has its slot, and that its handler is called at now.
func (r *Run) Call(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.called = Running, now
}

// Ended returns why the context of the run was to end, nil if it was not.
func (r *Run) Ended() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// Settle records that the settler gets the run, and returns the same as Ended.
func (r *Run) Settle() (ended error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = Settling
	return r.ended
}

// Phase returns the phase of the run.
func (r *Run) Phase() Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase
}

// Since returns when the run got its slot, the zero time if it did not.
func (r *Run) Since() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.called
}

// GaveUp reports whether the run was given up.
func (r *Run) GaveUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gaveUp
}

// InFlight holds the runs that a worker has claimed, until their outcomes are stored. R is a
// pointer to a struct that embeds Run.
type InFlight[R interface {
	comparable
	base() *Run
}] struct {
	Lost error // ends the context of a run that has lost its job

	mu      sync.Mutex
	runs    map[queue.Run]R
	newest  map[int64]R // by job: after a lost claim, an older run of the job may remain
	overdue map[R]bool  // given up, and the handler has not returned
}

// Add adds a run. It ends the context of an older run of the same job, which has lost its claim.
func (h *InFlight[R]) Add(r R) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs == nil {
		h.runs, h.newest, h.overdue = map[queue.Run]R{}, map[int64]R{}, map[R]bool{}
	}
	claim := r.base().Claim
	if older, has := h.newest[claim.ID]; has {
		older.base().End(h.Lost)
	}
	h.runs[claim], h.newest[claim.ID] = r, r
}

// Drop removes a run.
func (h *InFlight[R]) Drop(r R) {
	h.mu.Lock()
	defer h.mu.Unlock()
	claim := r.base().Claim
	delete(h.runs, claim)
	if h.newest[claim.ID] == r {
		delete(h.newest, claim.ID)
	}
}

// All returns the runs in flight.
func (h *InFlight[R]) All() []R {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.runs))
}

// Has reports whether a run is in flight.
func (h *InFlight[R]) Has(r R) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[r.base().Claim] == r
}

// GiveUp records that the handler of a run was given up. The handler may have returned already.
func (h *InFlight[R]) GiveUp(r R) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := r.base()
	b.mu.Lock()
	b.gaveUp = true
	b.mu.Unlock()
	if !b.back {
		h.overdue[r] = true
	}
}

// Returned records that a handler that was given up has returned.
func (h *InFlight[R]) Returned(r R) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.base().back = true
	delete(h.overdue, r)
}

// Holding returns the runs that hold slots, the longest first. The handlers of those that GaveUp
// ignore the end of their contexts.
func (h *InFlight[R]) Holding() []R {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Keys(h.overdue))
	for _, r := range h.runs {
		if r.base().Phase() == Running && !h.overdue[r] {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b R) int {
		return cmp.Or(a.base().Since().Compare(b.base().Since()), cmp.Compare(a.base().Claim.ID, b.base().Claim.ID))
	})
	return all
}

// Busy reports whether a run for which of is true is not settling.
func (h *InFlight[R]) Busy(of func(R) bool) bool {
	return slices.ContainsFunc(h.All(), func(r R) bool { return of(r) && r.base().Phase() != Settling })
}

// OverdueOf counts the runs of Overdue for which of is true. since is when the first got its slot.
func (h *InFlight[R]) OverdueOf(of func(R) bool) (n int, since time.Time) {
	all := slices.DeleteFunc(h.Overdue(), func(r R) bool { return !of(r) })
	if len(all) > 0 {
		since = all[0].base().Since()
	}
	return len(all), since
}

// Overdue returns the runs that were given up and whose handlers have not returned. The first that
// got its slot is the first.
func (h *InFlight[R]) Overdue() []R {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Keys(h.overdue), func(a, b R) int { return a.base().Since().Compare(b.base().Since()) })
}
