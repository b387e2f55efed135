package table

import (
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/hooks"
)

// Observer is told what happens, for logs, metrics and alarms. Every field may be nil.
// Calls come from the worker's own goroutines, several at a time: return soon, and do
// not call Stop and wait. A panic, or runtime.Goexit, ends the call and not the worker; the
// first of each hook is told by HookPanicked.
type Observer struct {
	// WorkerStarted: the checks are done, and the worker runs.
	WorkerStarted func(WorkerInfo)
	// WorkerStopped: everything has ended; Err says why if it is no clean stop.
	WorkerStopped func(WorkerInfo)
	// JobsClaimed: so many jobs were claimed at once.
	JobsClaimed func(Claimed)
	// JobDone: a run has ended, and what becomes of its job is stored.
	JobDone func(Done)
	// JobLost: a run's job is not this worker's any more. What the run did may happen
	// again.
	JobLost func(Header)
	// JobOverdue: a handler or its PreHandle ignores the end of its context, or Scan does
	// not return. The job goes on elsewhere; its slot stays taken until they return.
	JobOverdue func(Header)
	// JobReturned: what was given up, as JobOverdue tells, has returned, and its slot is free. What
	// it returned is of no effect. Nothing tells of those that return after Start.
	JobReturned func(Returned)
	// JobsHidden: the view does not show rows that were claimed. They are queued
	// again, due later and later.
	JobsHidden func(ids []int64)
	// JobReset: a job was lost with the worker that ran it. This worker has queued it
	// again, or ended it.
	JobReset func(Reset)
	// Failed: something does not work at the moment, or the table refuses to change a
	// row. It is tried again. A row is told once, and the others go on.
	Failed func(Trouble)
	// Recovered: all that Failed has told of this is over.
	Recovered func(Recovery)
	// PoolSwept: idle connections of the pool did not answer, and were closed.
	PoolSwept func(PoolSweep)
	// HookPanicked: a hook of an Observer, or of Handler, panicked. Told once for each.
	HookPanicked func(HookPanic)

	logs  bool // it logs
	warns bool // it logs warnings and errors only
}

// WorkerInfo names a worker.
type WorkerInfo struct {
	ID  uuid.UUID
	Err error // why it stopped, nil after a clean stop
}

// Returned is a handler, or a Scan, that was given up and has returned.
type Returned struct {
	Header
	Err  error         // what it returned
	Took time.Duration // since it got its slot; 0: Scan has none
}

// Header is what is known of a job beside its record.
type Header struct {
	ID          int64
	NumFailures int // before this run
	NumResets   int // likewise
}

// Claimed is an answer of the database.
type Claimed struct {
	Jobs int
	Took time.Duration
}

// Done is a run that has ended.
type Done struct {
	Header
	State State         // that the job has now
	Err   error         // that the handler returned, or why it is not completed; nil if it is
	Took  time.Duration // by PreHandle and the handler
}

// Reset tells of a job whose worker was lost.
type Reset struct {
	ID    int64
	State State         // that the job has now: queued, failed or canceled
	Age   time.Duration // of its last heartbeat
}

// What a Trouble is about.
const (
	Starting     = "start" // the database cannot be reached
	Claiming     = "claim"
	Heartbeating = "heartbeat"
	Settling     = "settle"
	Resetting    = "reset"
)

// Trouble is what does not work, and is tried again.
type Trouble struct {
	What string // Starting, Claiming, Heartbeating, Settling or Resetting
	ID   int64  // of the row that the table refuses to change, 0 if it is about no single row
	Err  error
}

// Recovery says that a trouble is over.
type Recovery struct {
	What   string
	Lasted time.Duration
}

// PoolSweep is a test of the idle connections of the pool.
type PoolSweep struct {
	Idle  int
	Alive int // of these
}

// HookPanic is a panic of the user's code that a job is not blamed for.
type HookPanic struct {
	Hook  string
	Value string
}

// voice tells all observers.
type voice = hooks.Voice[Observer]

func newVoice(all []Observer) *voice {
	all = hooks.WithLog(all, func(o Observer) bool { return o.logs }, newWarner)
	return hooks.New(all, func(v *voice, hook, value string) {
		hooks.Tell(v, "HookPanicked", func(o *Observer) func(HookPanic) { return o.HookPanicked }, HookPanic{hook, value})
	})
}

// newWarner returns the Observer of a worker that was given none that logs.
func newWarner(l *slog.Logger) Observer {
	o := NewSlogObserver(l)
	o.JobsClaimed, o.warns = nil, true // JobsClaimed never warns
	return o
}

// done returns the hook for a job that has ended in a state; nil: there is none. A job that has
// completed is nothing to warn of.
func (o *Observer) done(state State) func(Done) {
	if o.warns && state == StateCompleted {
		return nil
	}
	return o.JobDone
}

// NewSlogObserver returns an Observer that logs: what is wrong as Error or Warn,
// what changes as Info, every job as Debug. nil stands for slog.Default().
func NewSlogObserver(l *slog.Logger) Observer {
	if l == nil {
		l = slog.Default()
	}
	return Observer{
		logs:          true,
		WorkerStarted: func(i WorkerInfo) { l.Info("table worker started", "worker", i.ID) },
		WorkerStopped: func(i WorkerInfo) {
			if i.Err != nil {
				l.Error("table worker stopped", "worker", i.ID, "error", i.Err)
			} else {
				l.Info("table worker stopped", "worker", i.ID)
			}
		},
		JobsClaimed: func(c Claimed) { l.Debug("jobs claimed", "jobs", c.Jobs, "took", c.Took) },
		JobDone: func(d Done) {
			switch d.State {
			case StateFailed:
				l.Error("job failed", "job", d.ID, "failures", d.NumFailures+1, "took", d.Took, "error", d.Err)
			case StateErrored:
				l.Warn("job will be tried again", "job", d.ID, "failures", d.NumFailures+1, "took", d.Took, "error", d.Err)
			case StateCompleted:
				l.Debug("job done", "job", d.ID, "took", d.Took)
			default:
				l.Info("job did not complete", "job", d.ID, "state", d.State, "took", d.Took, "reason", d.Err)
			}
		},
		JobLost: func(h Header) { l.Warn("job lost", "job", h.ID) },
		JobOverdue: func(h Header) {
			l.Error("handler ignores the end of its context, its slot is lost until it returns", "job", h.ID)
		},
		JobReturned: func(r Returned) {
			l.Warn("handler that was given up has returned", "job", r.ID, "took", r.Took, "error", r.Err)
		},
		JobsHidden: func(ids []int64) { l.Warn("the view does not show claimed jobs", "jobs", ids) },
		JobReset: func(r Reset) {
			l.Warn("job of a lost worker reset", "job", r.ID, "state", r.State, "heartbeat_age", r.Age)
		},
		Failed: func(t Trouble) {
			if t.ID != 0 {
				l.Error("the table refuses to change a row", "what", t.What, "job", t.ID, "error", t.Err)
			} else {
				l.Error("statement failed, retrying", "what", t.What, "error", t.Err)
			}
		},
		Recovered: func(r Recovery) { l.Info("recovered", "from", r.What, "lasted", r.Lasted) },
		PoolSwept: func(s PoolSweep) { l.Error("closed dead connections of the pool", "idle", s.Idle, "alive", s.Alive) },
		HookPanicked: func(p HookPanic) {
			l.Error("hook panicked, going on; further panics of it are not logged", "hook", p.Hook, "panic", p.Value)
		},
	}
}
