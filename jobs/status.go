package jobs

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
	WorkerStarting = observe.StateStarting // checks and registers
	WorkerRunning  = observe.StateRunning
	WorkerDraining = observe.StateDraining // waits for the jobs in hand
	WorkerDrained  = observe.StateDrained  // as an operator asked: nothing runs, and Start waits for Stop
	WorkerStopped  = observe.StateStopped  // Start has returned
)

// Status is a snapshot of a worker for health checks and debugging.
type Status struct {
	State WorkerState
	// Leader tells whether this worker does what one of all does.
	Leader bool
	// LastHeartbeat is when this worker last told the others that it is alive, by
	// this process's clock.
	LastHeartbeat time.Time
	// CoordinationError is why that does not work at the moment, nil if it does.
	CoordinationError error
	// SettleError is why what became of jobs cannot be stored at the moment, nil if
	// it can.
	SettleError error
	// NotifyError is why notifications do not arrive, nil while they do, and without
	// WithNotifyConnectionString.
	NotifyError error
	Unsettled   int // runs that have ended, of which the database does not know yet
	Queues      []QueueStatus
}

// QueueStatus is the part of a Status about one queue.
type QueueStatus struct {
	Name        string
	Concurrency int
	Running     int // handlers that run, and those that were given up and have not returned
	// Overdue counts those that were given up, as they ignore the end of their contexts. Their
	// slots are lost until they return: see Running. OverdueSince is when the first of them got its
	// slot, by this process's clock, the zero time if there are none.
	Overdue      int
	OverdueSince time.Time
	Prefetched   int
	Claimed      int64    // since the start
	Completed    int64    // likewise
	Failed       int64    // runs that have failed, likewise
	Lost         int64    // runs whose job was given to another worker, likewise
	Paused       bool     // by an operator, as of the last look
	Capped       bool     // there is a cap for all workers, likewise
	UnknownKinds []string // of jobs that are due, and that this worker has no handlers for
	LastError    error    // why no jobs can be claimed at the moment, nil if they can
}

// MarshalJSON writes the fields under their names, and errors as their texts.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		CoordinationError string `json:",omitempty"`
		SettleError       string `json:",omitempty"`
		NotifyError       string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.CoordinationError), errtext.Storable(s.SettleError), errtext.Storable(s.NotifyError)})
}

// MarshalJSON writes the fields under their names, and errors as their texts.
func (s QueueStatus) MarshalJSON() ([]byte, error) {
	type fields QueueStatus
	return json.Marshal(struct {
		fields
		LastError string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.LastError)})
}

// Status returns a snapshot. It may be called at any time.
func (w *Worker) Status() Status {
	s := Status{State: w.state.Load().(WorkerState)}
	for _, q := range w.cfg.served() {
		s.Queues = append(s.Queues, QueueStatus{Name: q.name, Concurrency: q.concurrency})
	}
	if !w.isReady() {
		return s
	}
	c := w.coord.Status()
	s.Leader, s.LastHeartbeat, s.CoordinationError = c.Leader, c.LastHeartbeat, explain(c.LastError)
	s.Unsettled, s.SettleError = w.settler.status()
	s.NotifyError = w.notifyError()
	for i, l := range w.loops {
		s.Queues[i] = l.status()
		s.Queues[i].Overdue, s.Queues[i].OverdueSince = w.hand.overdueOf(l)
	}
	return s
}

// RunningJob is a job that has a slot of this worker: its handler runs, or is about to, once it
// has a transaction.
type RunningJob struct {
	Header            // flow.RunOf knows the run of a flow that it is a step of
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
