package jobs

import (
	"encoding/json"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// Status is a snapshot of a worker for health checks and debugging.
type Status struct {
	State observe.State
	// Leader reports whether this worker leads.
	Leader bool
	// LastHeartbeat is when this worker last sent a heartbeat, by this process's clock.
	LastHeartbeat time.Time
	// CoordinationError is why heartbeats fail at the moment, nil if they succeed.
	CoordinationError error
	// SettleError is why outcomes of jobs cannot be stored at the moment, nil if they can.
	SettleError error
	// NotifyError is why notifications do not arrive. It is nil while they arrive, and without
	// WithNotifyConnectionString.
	NotifyError error
	Unsettled   int // runs that have ended and whose outcome is not stored yet
	Queues      []QueueStatus
}

// QueueStatus is the part of a Status about one queue.
type QueueStatus struct {
	Name        string
	Concurrency int
	Running     int // running handlers, including those that were given up and have not returned
	// Overdue counts the handlers that were given up, since they ignore the end of their contexts.
	// Their slots are lost until they return, see Running. OverdueSince is when the first of them
	// got its slot, by this process's clock. It is the zero time if there are none.
	Overdue      int
	OverdueSince time.Time
	Prefetched   int
	Claimed      int64    // since the start
	Completed    int64    // since the start
	Failed       int64    // runs that have failed, since the start
	Lost         int64    // runs whose job another worker got, since the start
	Paused       bool     // by an operator, as of the last poll
	Capped       bool     // there is a cap for all workers, as of the last poll
	UnknownKinds []string // kinds of due jobs for which this worker has no handlers
	LastError    error    // why no jobs can be claimed at the moment, or which one cannot be; nil if all can
	Refused      int      `json:",omitempty"` // jobs that cannot be claimed while others can; LastError names one
}

// MarshalJSON writes the fields by name, and errors as their texts.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		CoordinationError string `json:",omitempty"`
		SettleError       string `json:",omitempty"`
		NotifyError       string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.CoordinationError), errtext.Storable(s.SettleError), errtext.Storable(s.NotifyError)})
}

// MarshalJSON writes the fields by name, and errors as their texts.
func (s QueueStatus) MarshalJSON() ([]byte, error) {
	type fields QueueStatus
	return json.Marshal(struct {
		fields
		LastError string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.LastError)})
}

// Status returns a snapshot of the worker. It may be called at any time.
func (w *Worker) Status() Status {
	s := Status{State: w.state.Load().(observe.State)}
	for _, q := range w.cfg.served() {
		s.Queues = append(s.Queues, QueueStatus{Name: q.name, Concurrency: q.concurrency})
	}
	if !w.isReady() {
		return s
	}
	c := w.coord.Status()
	s.Leader, s.LastHeartbeat, s.CoordinationError = c.Leader, c.LastHeartbeat, errtext.Of(runtime.Explain("jobs", c.LastError))
	s.Unsettled, s.SettleError = w.settler.status()
	s.NotifyError = w.listener.Err()
	for i, l := range w.loops {
		s.Queues[i] = l.status()
		s.Queues[i].Overdue, s.Queues[i].OverdueSince = w.inFlight.OverdueOf(l.has)
	}
	return s
}

// RunningJob is a job that holds a slot of this worker. Its handler runs, or runs once it has a
// transaction.
type RunningJob struct {
	Header            // flow.RunOf returns the run of a flow if the job is a step
	Since   time.Time // when the job got its slot, by this process's clock
	Overdue bool      // the handler ignores the end of its context and was given up
}

// Running returns the jobs that hold slots of this worker, the longest first. It may be called at
// any time, also from a handler.
func (w *Worker) Running() []RunningJob {
	var all []RunningJob
	for _, r := range w.inFlight.Holding() {
		all = append(all, RunningJob{Header: r.header, Since: r.Since(), Overdue: r.GaveUp()})
	}
	return all
}
