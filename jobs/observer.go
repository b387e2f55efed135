package jobs

import (
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/hooks"
)

// Observer is told what happens, for logs, metrics and alarms: it is the only voice
// of a worker. Every field may be nil. Calls come from the worker's own goroutines,
// several at a time: return soon, and do not call Stop and wait. A panic, or
// runtime.Goexit, ends the call and not the worker; the first of each hook is told by
// HookPanicked.
type Observer struct {
	// WorkerStarted: the checks are done, the worker is registered and runs.
	WorkerStarted func(WorkerInfo)
	// WorkerStopped: everything has ended; Err says why if it is no clean stop.
	WorkerStopped func(WorkerInfo)
	// LeadershipChanged: this worker became, or stopped being, the leader, which
	// gives the jobs of dead workers to others, and removes what is old.
	LeadershipChanged func(Leadership)
	// CoordinationFailed: the heartbeat failed. It is tried again.
	CoordinationFailed func(error)
	// JobsClaimed: so many jobs of a queue were claimed at once.
	JobsClaimed func(Claimed)
	// JobDone: a run has ended, and what becomes of its job is stored.
	JobDone func(Done)
	// JobLost: a run does not have its job any more. Another worker runs the job, or will,
	// since this one was taken for dead: what the run did outside of the job's transaction
	// may happen again. Or somebody has deleted the job from the table.
	JobLost func(Header)
	// JobOverdue: a handler ignores the end of its context. Its job goes on
	// elsewhere; the slot stays taken until it returns.
	JobOverdue func(Header)
	// JobReturned: a handler that was given up, as JobOverdue tells, has returned, and its slot is
	// free. What it returned is of no effect. Nothing tells of those that return after Start.
	JobReturned func(Returned)
	// JobsReset: the jobs of dead workers were given to others, or have failed
	// because that has happened too often. The leader tells.
	JobsReset func(Reset)
	// JobsExpired: jobs have ended that did not start by their GoodUntil. The
	// leader tells.
	JobsExpired func(jobs int)
	// FlowRunEnded: a run of a flow has ended. The worker tells whose Advance of package flow has
	// ended it, once. A run without a job that runs, which a Cancel ends itself, is not told. Nor
	// is a run if the database's answer was lost.
	FlowRunEnded func(FlowRun)
	// QueueFailed: the jobs of a queue can not be claimed, or looked at. It is
	// tried again.
	QueueFailed func(Trouble)
	// SettleFailed: what becomes of jobs can not be stored, of all, of one whose row
	// somebody has locked, or of one that the database refuses. The last two are set aside,
	// and the others are stored. All are kept and tried again.
	SettleFailed func(Trouble)
	// NotifyFailed: the listening connection was lost, or notifications do not arrive on it:
	// it leads elsewhere. The worker polls meanwhile.
	NotifyFailed func(error)
	// Recovered: what QueueFailed, SettleFailed, NotifyFailed or CoordinationFailed
	// has told is over.
	Recovered func(Recovery)
	// UnknownKinds: jobs are due in a queue of this worker that it has no handlers
	// for. Another worker may. Told when the kinds change.
	UnknownKinds func(Unknown)
	// PoolSwept: idle connections of the pool did not answer, and were closed.
	PoolSwept func(PoolSweep)
	// TaskFailed: the start, or a task in the background, failed, as a whole or for the jobs that it names.
	// It will be tried again.
	TaskFailed func(Task)
	// HookPanicked: a hook of an Observer, or of Hooks, panicked or called runtime.Goexit.
	// Told once for each.
	HookPanicked func(HookPanic)

	logs  bool // it logs
	warns bool // it logs warnings and errors only
}

// WorkerInfo names a worker.
type WorkerInfo struct {
	ID      uuid.UUID
	Err     error // why it stopped, nil after a clean stop
	Drained bool  // an operator asked it to drain: without an Err, Start goes on waiting for Stop
}

// Leadership tells whether this worker leads.
type Leadership struct {
	ID     uuid.UUID
	Leader bool
}

// Claimed is an answer of the database.
type Claimed struct {
	Queue string
	Jobs  int
	Took  time.Duration
}

// Returned is a handler that was given up and has returned.
type Returned struct {
	Header
	Err  error         // what it returned
	Took time.Duration // since it got its slot
}

// Done is a run that has ended.
type Done struct {
	Header
	State  State         // that the job has now: available, if it is run again
	Failed bool          // the run counts as a failure
	Err    error         // that the handler returned, nil if it completed
	Took   time.Duration // by the handler
	Waited time.Duration // from when the job was due to its start, by this process's clock
}

// FlowRun is a run of a flow that has ended.
type FlowRun struct {
	Run   int64 // its id
	Flow  string
	State State         // completed, failed or cancelled
	Took  time.Duration // from its first start, by the database's clock
}

// Reset tells of jobs of dead workers.
type Reset struct {
	Workers []uuid.UUID
	Back    int // run again
	Ended   int // have failed, or were cancelled
}

// Trouble is what fails, and is tried again.
type Trouble struct {
	Queue string // empty: not one queue's
	Err   error
}

// Recovery says that a trouble is over.
type Recovery struct {
	What   string // queue, settle, notify, coordination
	Queue  string
	Lasted time.Duration
}

// Unknown are kinds of jobs that this worker has no handlers for.
type Unknown struct {
	Queue string
	Kinds []string
}

// PoolSweep is a test of the idle connections of the pool.
type PoolSweep struct {
	Idle  int
	Alive int // of these
}

// Task is a task in the background.
type Task struct {
	Name string
	Err  error
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
		tell(v, "HookPanicked", func(o *Observer) func(HookPanic) { return o.HookPanicked }, HookPanic{hook, value})
	})
}

// tell calls a hook of each observer that has it.
func tell[T any](v *voice, hook string, of func(*Observer) func(T), about T) {
	hooks.Tell(v, hook, of, about)
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

// flowRunEnded returns the hook for a run that has ended in a state, as done does for a job.
func (o *Observer) flowRunEnded(state State) func(FlowRun) {
	if o.warns && state == StateCompleted {
		return nil
	}
	return o.FlowRunEnded
}

// NewSlogObserver returns an Observer that logs: what is wrong as Error or Warn,
// what changes as Info, every job as Debug. nil stands for slog.Default().
func NewSlogObserver(l *slog.Logger) Observer {
	if l == nil {
		l = slog.Default()
	}
	return Observer{
		logs:          true,
		WorkerStarted: func(i WorkerInfo) { l.Info("job worker started", "worker", i.ID) },
		WorkerStopped: func(i WorkerInfo) {
			switch {
			case i.Err != nil:
				l.Error("job worker stopped", "worker", i.ID, "error", i.Err)
			case i.Drained:
				l.Info("job worker drained, as an operator asked: it waits for the program to stop it", "worker", i.ID)
			default:
				l.Info("job worker stopped", "worker", i.ID)
			}
		},
		LeadershipChanged: func(c Leadership) {
			if c.Leader {
				l.Info("gained leadership of jobs", "worker", c.ID)
			} else {
				l.Info("lost leadership of jobs", "worker", c.ID)
			}
		},
		CoordinationFailed: func(err error) { l.Error("heartbeat of job worker failed, retrying", "error", err) },
		JobsClaimed: func(c Claimed) {
			l.Debug("jobs claimed", "queue", c.Queue, "jobs", c.Jobs, "took", c.Took)
		},
		JobDone: func(d Done) {
			switch {
			case d.State == StateFailed:
				l.Error("job failed", "job", d.ID, "kind", d.Kind, "queue", d.Queue, "attempt", d.Attempt, "took", d.Took, "error", d.Err)
			case d.Failed:
				l.Warn("job will be tried again", "job", d.ID, "kind", d.Kind, "queue", d.Queue, "attempt", d.Attempt, "state", d.State, "took", d.Took, "error", d.Err)
			case d.State != StateCompleted:
				l.Info("job did not complete", "job", d.ID, "kind", d.Kind, "queue", d.Queue, "attempt", d.Attempt, "state", d.State, "took", d.Took, "reason", d.Err)
			default:
				l.Debug("job done", "job", d.ID, "kind", d.Kind, "queue", d.Queue, "attempt", d.Attempt, "state", d.State, "took", d.Took, "waited", d.Waited)
			}
		},
		JobLost: func(h Header) {
			l.Warn("job lost, to another worker or deleted", "job", h.ID, "kind", h.Kind, "queue", h.Queue)
		},
		JobOverdue: func(h Header) {
			l.Error("handler ignores the end of its context, its slot is lost until it returns", "job", h.ID, "kind", h.Kind, "queue", h.Queue)
		},
		JobReturned: func(r Returned) {
			l.Warn("handler that was given up has returned", "job", r.ID, "kind", r.Kind, "queue", r.Queue, "took", r.Took, "error", r.Err)
		},
		JobsReset: func(r Reset) {
			l.Warn("jobs of dead workers reset", "workers", r.Workers, "back", r.Back, "ended", r.Ended)
		},
		FlowRunEnded: func(r FlowRun) {
			switch r.State {
			case StateFailed:
				l.Error("run of a flow failed", "flow", r.Flow, "run", r.Run, "took", r.Took)
			case StateCompleted:
				l.Debug("run of a flow completed", "flow", r.Flow, "run", r.Run, "took", r.Took)
			default:
				l.Info("run of a flow did not complete", "flow", r.Flow, "run", r.Run, "state", r.State, "took", r.Took)
			}
		},
		JobsExpired:  func(n int) { l.Warn("jobs expired", "jobs", n) },
		QueueFailed:  func(t Trouble) { l.Error("cannot claim jobs, retrying", "queue", t.Queue, "error", t.Err) },
		SettleFailed: func(t Trouble) { l.Error("cannot store what became of jobs, retrying", "error", t.Err) },
		NotifyFailed: func(err error) { l.Error("notifications of jobs do not arrive, polling", "error", err) },
		Recovered: func(r Recovery) {
			l.Info("recovered", "from", r.What, "queue", r.Queue, "lasted", r.Lasted)
		},
		UnknownKinds: func(u Unknown) { l.Warn("no handlers for jobs that are due", "queue", u.Queue, "kinds", u.Kinds) },
		PoolSwept:    func(s PoolSweep) { l.Error("closed dead connections of the pool", "idle", s.Idle, "alive", s.Alive) },
		TaskFailed:   func(t Task) { l.Warn("task failed", "task", t.Name, "error", t.Err) },
		HookPanicked: func(p HookPanic) {
			l.Error("hook panicked, going on; further panics of it are not logged", "hook", p.Hook, "panic", p.Value)
		},
	}
}
