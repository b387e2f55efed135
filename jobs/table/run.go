package table

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// claim is, with the worker, the fence of a run: who changes the row must name it.
type claim struct {
	ID    int64 `json:"id"`
	Claim int64 `json:"claim"` // the microsecond of started_at
}

// arrays are the parts of claims, as text.
func arrays(claims []claim) (ids, numbers string) {
	a, b := []byte{'{'}, []byte{'{'}
	for i, c := range claims {
		if i > 0 {
			a, b = append(a, ','), append(b, ',')
		}
		a, b = strconv.AppendInt(a, c.ID, 10), strconv.AppendInt(b, c.Claim, 10)
	}
	return string(append(a, '}')), string(append(b, '}'))
}

// run is a job that this worker has claimed.
type run struct {
	w      *Worker
	claim  claim
	header Header
	job    any         // a *Job of the handler's; nil before it is read
	server int64       // when the one with the claim was started; only the heartbeats change it
	missed time.Time   // when a heartbeat first did not find the claim; likewise
	back   bool        // it was given up, and has returned; guarded by hand
	over   atomic.Bool // the handler has returned, or was given up: the first of the two sets it; or Scan was

	mu       sync.Mutex
	begun    time.Time               // when it got its slot
	cancel   context.CancelCauseFunc // of its context; nil before it runs
	ended    error                   // why its context was to end
	settling bool                    // the settler has it
	byTx     bool                    // CompleteTx was called
}

// isLost reports whether a heartbeat that has not found the claim shows that it is lost. On
// another server than that of the claim it does not, see home. But that server may have been
// restarted, or be gone, so after a while it does.
func (r *run) isLost(server int64, while time.Duration) bool {
	if r.missed.IsZero() {
		r.missed = time.Now()
	}
	return r.server == server || time.Since(r.missed) >= while
}

// end ends the context of the run, or makes it end as soon as it has one.
func (r *run) end(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.ended = why
	}
	if r.cancel != nil {
		r.cancel(why)
	}
}

// begin gives the run its context.
func (r *run) begin(cancel context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel = cancel; r.ended != nil {
		cancel(r.ended)
	}
}

// call records that the run has its slot, and its handler is called now.
func (r *run) call(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = now
}

// called returns since when the run has its slot, the zero time if it never had one, and whether
// its handler has ended.
func (r *run) called() (since time.Time, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun, r.settling
}

// settle takes note that the settler gets the run. It returns why the context was to
// end, nil if it was not, and whether CompleteTx was called.
func (r *run) settle() (ended error, byTx bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settling = true
	return r.ended, r.byTx
}

// runs reports whether the handler runs, and whether it may have completed the job
// itself.
func (r *run) runs() (runs, byTx bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.settling, r.byTx
}

// hand has the runs that this worker has claimed, until the database knows how they
// ended.
type hand struct {
	mu      sync.Mutex
	of      map[claim]*run
	newest  map[int64]*run
	overdue map[*run]bool // given up, their handlers have not returned
}

func newHand() *hand {
	return &hand{of: map[claim]*run{}, newest: map[int64]*run{}, overdue: map[*run]bool{}}
}

// add takes a run in. It returns another run of the same job, nil if there is none:
// its claim was lost.
func (h *hand) add(r *run) (older *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	older = h.newest[r.claim.ID]
	h.of[r.claim], h.newest[r.claim.ID] = r, r
	return older
}

func (h *hand) drop(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, r.claim)
	if h.newest[r.claim.ID] == r {
		delete(h.newest, r.claim.ID)
	}
}

// all are the runs in hand.
func (h *hand) all() (runs []*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.of {
		runs = append(runs, r)
	}
	return runs
}

// called returns the jobs that have slots, and those whose handlers were given up. A Scan that
// was given up has none.
func (h *hand) called() (all []RunningJob) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.of {
		if since, ended := r.called(); !ended && !since.IsZero() && !h.overdue[r] {
			all = append(all, RunningJob{Header: r.header, Since: since})
		}
	}
	for r := range h.overdue {
		if since, _ := r.called(); !since.IsZero() {
			all = append(all, RunningJob{Header: r.header, Since: since, Overdue: true})
		}
	}
	return all
}

// has reports whether a run is still in hand.
func (h *hand) has(r *run) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[r.claim] == r
}

// gaveUp records that a handler ignores the end of its context, and returned that it
// has returned after that.
func (h *hand) gaveUp(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.back {
		h.overdue[r] = true
	}
}

func (h *hand) returned(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.back = true
	delete(h.overdue, r)
}

// overdueNow counts the runs that were given up and whose handlers have not returned, and says
// since when the first of them has its slot.
func (h *hand) overdueNow() (n int, since time.Time) {
	for _, j := range h.called() {
		if !j.Overdue {
			continue
		}
		if n++; since.IsZero() || j.Since.Before(since) {
			since = j.Since
		}
	}
	return n, since
}

// late are the ids of runs that were given up and have not returned.
func (h *hand) late() (ids []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.overdue {
		ids = append(ids, r.claim.ID)
	}
	slices.Sort(ids)
	return ids
}
