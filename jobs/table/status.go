package table

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/observe"
)

// WorkerState is where a worker is in its life.
type WorkerState = observe.State

const (
	WorkerNew      = observe.StateNew      // Start was not called yet
	WorkerStarting = observe.StateStarting // checks the table
	WorkerRunning  = observe.StateRunning
	WorkerDraining = observe.StateDraining // waits for the jobs in hand
	WorkerStopped  = observe.StateStopped  // Start has returned
)

// Status is a snapshot of a worker for health checks and debugging.
type Status struct {
	State       WorkerState
	NumHandlers int
	Running     int // slots that are taken: by handlers, and by jobs whose end is being stored
	// Overdue counts the handlers that were given up, as they ignore the end of their contexts.
	// Their slots are lost until they return. OverdueSince is when the first of them got its slot,
	// by this process's clock, the zero time if there are none. Running names the jobs.
	Overdue      int
	OverdueSince time.Time
	Unsettled    int   // runs that have ended, and that the database does not know yet
	Claimed      int64 // since the start
	Completed    int64 // likewise
	Failed       int64 // runs that have failed, likewise
	Lost         int64 // runs whose job became another's, likewise
	Reset        int64 // jobs of other workers that were reset, likewise
	// LastHeartbeat is when the heartbeats of the jobs in hand were last written, by
	// this process's clock; the zero time before the first.
	LastHeartbeat time.Time
	// What follows is nil if it works. While the table refuses to change some rows, and
	// others go on, it is about these.
	ClaimError     error // why jobs cannot be claimed at the moment
	HeartbeatError error // why heartbeats are not written
	SettleError    error // why the ends of jobs are not stored
	ResetError     error // why jobs of lost workers are not reset
}

// MarshalJSON writes the fields under their names, and errors as their texts.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		ClaimError     string `json:",omitempty"`
		HeartbeatError string `json:",omitempty"`
		SettleError    string `json:",omitempty"`
		ResetError     string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.ClaimError), errtext.Storable(s.HeartbeatError), errtext.Storable(s.SettleError), errtext.Storable(s.ResetError)})
}

// Status returns a snapshot. It may be called at any time.
func (w *Worker) Status() Status {
	w.mu.Lock()
	s := w.status
	s.ClaimError, s.HeartbeatError = w.trouble(observe.ConditionClaim), w.trouble(observe.ConditionHeartbeat)
	s.SettleError, s.ResetError = w.trouble(observe.ConditionSettle), w.trouble(observe.ConditionReset)
	s.Running = w.taken
	w.mu.Unlock()
	s.State = w.state.Load().(WorkerState)
	s.NumHandlers = w.opts.NumHandlers
	s.Unsettled = w.settler.waits()
	s.Overdue, s.OverdueSince = w.hand.overdueNow()
	return s
}

// change changes the status.
func (w *Worker) change(f func(s *Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.status)
}

// RunningJob is a job that has a slot of this worker: its handler or its PreHandle runs.
type RunningJob struct {
	Header
	Since   time.Time // when it got the slot, by this process's clock
	Overdue bool      // the handler ignores the end of its context: the job has gone on without it
}

// Running returns the jobs that have slots of this worker, the longest first. It may be called
// at any time, also from a handler.
func (w *Worker) Running() []RunningJob {
	all := w.hand.called()
	slices.SortFunc(all, func(a, b RunningJob) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
	})
	return all
}
