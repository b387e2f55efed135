package table

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// claim is, with the worker, the fence of a run: a statement that changes the row must name it.
type claim struct {
	ID    int64 `json:"id"`
	Claim int64 `json:"claim"` // microsecond of started_at
}

// arrays returns the IDs and numbers of claims as arrays in text form.
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
	job    any         // a *Job of the handler; nil before it is read
	server string      // start time of the server with the claim; only heartbeats change it
	missed time.Time   // when a heartbeat first did not find the claim; only heartbeats change it
	back   bool        // the handler was given up, and has returned; guarded by inFlight
	over   atomic.Bool // set by whichever is first: the handler or Scan returns, or is given up

	mu       sync.Mutex
	begun    time.Time               // when the run got its slot
	cancel   context.CancelCauseFunc // ends the context of the run; nil before the run
	ended    error                   // why the context was to end
	settling bool                    // the settler has it
	byTx     bool                    // CompleteTx was called
}

// isLost reports whether the job is lost after a heartbeat that has not found the claim. On another
// server than the claim's, the job is not lost at first, see Failover. That server may have been
// restarted or be gone, so after a while the job is lost.
func (r *run) isLost(server string, while time.Duration) bool {
	if r.missed.IsZero() {
		r.missed = time.Now()
	}
	return r.server == server || time.Since(r.missed) >= while
}

// end ends the context of the run, or makes the context end as soon as the run has one.
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

// call records that the run has its slot and its handler is called at now.
func (r *run) call(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = now
}

// called returns since when the run has its slot, and whether its handler has ended. since is the
// zero time if the run never had a slot.
func (r *run) called() (since time.Time, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun, r.settling
}

// settle records that the settler gets the run. It returns why the context was to end, nil if it
// was not, and whether CompleteTx was called.
func (r *run) settle() (ended error, byTx bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settling = true
	return r.ended, r.byTx
}

// runs reports whether the handler runs, and whether it has called CompleteTx.
func (r *run) runs() (runs, byTx bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.settling, r.byTx
}

// inFlight holds the runs that this worker has claimed, until their outcome is stored.
type inFlight struct {
	mu      sync.Mutex
	of      map[claim]*run
	newest  map[int64]*run
	overdue map[*run]bool // given up, and the handler has not returned
}

func newInFlight() *inFlight {
	return &inFlight{of: map[claim]*run{}, newest: map[int64]*run{}, overdue: map[*run]bool{}}
}

// add adds a run. If another run of the same job is in flight, add returns it: that run has lost
// its claim.
func (h *inFlight) add(r *run) (older *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	older = h.newest[r.claim.ID]
	h.of[r.claim], h.newest[r.claim.ID] = r, r
	return older
}

func (h *inFlight) drop(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, r.claim)
	if h.newest[r.claim.ID] == r {
		delete(h.newest, r.claim.ID)
	}
}

// all returns the runs in flight.
func (h *inFlight) all() (runs []*run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.of {
		runs = append(runs, r)
	}
	return runs
}

// called returns the jobs that hold slots, including those whose handlers were given up. A Scan
// that was given up has no job.
func (h *inFlight) called() (all []RunningJob) {
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

// has reports whether a run is still in flight.
func (h *inFlight) has(r *run) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[r.claim] == r
}

// gaveUp records that the handler of a run was given up. returned records that the handler has
// returned after that.
func (h *inFlight) gaveUp(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.back {
		h.overdue[r] = true
	}
}

func (h *inFlight) returned(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.back = true
	delete(h.overdue, r)
}

// overdueNow counts the runs that were given up and whose handlers have not returned. since is when
// the first of them got its slot.
func (h *inFlight) overdueNow() (n int, since time.Time) {
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

// late returns the IDs of runs that were given up and whose handlers have not returned.
func (h *inFlight) late() (ids []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.overdue {
		ids = append(ids, r.claim.ID)
	}
	slices.Sort(ids)
	return ids
}
