package observe

import (
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// Kind is a kind of worker.
type Kind string

const (
	KindEvents   Kind = "events"   // of package worker
	KindJobs     Kind = "jobs"     // of package jobs
	KindTable    Kind = "table"    // of package jobs/table
	KindSchedule Kind = "schedule" // a Scheduler of package jobs/schedule
	KindVerify   Kind = "verify"   // Operator.VerifyEvery of package ops, which is no worker
)

// Worker names the worker that reports an event.
type Worker struct {
	Kind Kind
	ID   uuid.UUID // in the tables; zero for a Scheduler and VerifyEvery
}

func (w Worker) attrs(more ...slog.Attr) []slog.Attr {
	return append(more, slog.String("worker", string(w.Kind)), slog.Any("worker_id", w.ID))
}

// failure returns the attribute of an error.
func failure(err error) slog.Attr { return slog.Any("error", err) }

// WorkerStarted reports that the checks of the start have succeeded, and that the worker is
// registered and runs.
type WorkerStarted struct {
	Worker
	Consumers int // consumers that the worker has code for; 0 for workers of jobs
}

func (WorkerStarted) level() slog.Level { return slog.LevelInfo }
func (e WorkerStarted) line() (string, []slog.Attr) {
	return "worker started", e.attrs(slog.Int("consumers", e.Consumers))
}

// WorkerStopped reports that everything of the worker has ended.
type WorkerStopped struct {
	Worker
	Err     error // nil after a clean stop
	Drained bool  // an operator has drained it; without an Err, Start still waits for Stop
}

func (e WorkerStopped) level() slog.Level {
	if e.Err != nil {
		return slog.LevelError
	}
	return slog.LevelInfo
}

func (e WorkerStopped) line() (string, []slog.Attr) {
	switch {
	case e.Err != nil:
		return "worker stopped", e.attrs(failure(e.Err))
	case e.Drained:
		return "worker drained, as an operator asked: it waits for the program to stop it", e.attrs()
	}
	return "worker stopped", e.attrs()
}

// ShutdownTimedOut reports that a stop has taken longer than WithShutdownTimeout. The
// batches in flight are rolled back.
type ShutdownTimedOut struct {
	Worker
	Err error // names the option
}

func (ShutdownTimedOut) level() slog.Level { return slog.LevelError }
func (e ShutdownTimedOut) line() (string, []slog.Attr) {
	return "shutdown timed out", e.attrs(failure(e.Err))
}

// WorkerReregistered reports that the worker's row was gone, and that the worker has
// registered again.
type WorkerReregistered struct{ Worker }

func (WorkerReregistered) level() slog.Level { return slog.LevelInfo }
func (e WorkerReregistered) line() (string, []slog.Attr) {
	return "registered again, the worker's row was gone", e.attrs()
}

// StaleWorkersRemoved reports that this worker has removed rows of workers that died long
// ago. It does so when it registers, and as the leader.
type StaleWorkersRemoved struct {
	Worker
	Rows int
}

func (StaleWorkersRemoved) level() slog.Level { return slog.LevelInfo }
func (e StaleWorkersRemoved) line() (string, []slog.Attr) {
	return "removed stale workers", e.attrs(slog.Int("rows", e.Rows))
}

// LeadershipChanged reports that this worker has become the leader, or has lost the
// leadership. The leader of event workers assigns the consumers. The leader of job workers
// resets the jobs of dead workers, and removes old rows.
type LeadershipChanged struct {
	Worker
	Leader bool
}

func (LeadershipChanged) level() slog.Level { return slog.LevelInfo }
func (e LeadershipChanged) line() (string, []slog.Attr) {
	if e.Leader {
		return "gained leadership", e.attrs()
	}
	return "lost leadership", e.attrs()
}

// Rebalanced reports that this worker leads and has changed assignments.
type Rebalanced struct {
	Workers int // live workers
	Changes int // consumers that were assigned, or taken from a worker
}

func (Rebalanced) level() slog.Level { return slog.LevelInfo }
func (e Rebalanced) line() (string, []slog.Attr) {
	return "rebalanced", []slog.Attr{slog.Int("workers", e.Workers), slog.Int("changes", e.Changes)}
}

// CoordinationFailed reports that heartbeats, leadership or assignments fail. The worker
// retries, and reports each failed attempt.
type CoordinationFailed struct {
	Worker
	Err error
}

func (CoordinationFailed) level() slog.Level { return slog.LevelError }
func (e CoordinationFailed) line() (string, []slog.Attr) {
	return "coordination failed, retrying", e.attrs(failure(e.Err))
}

// NotifyFailed reports that notifications do not arrive. The listening connection was lost
// (reported for each attempt), does not answer, or leads to another database, or nothing
// notifies the channel. The worker polls until notifications arrive again.
type NotifyFailed struct {
	Worker
	Err error
}

func (NotifyFailed) level() slog.Level { return slog.LevelError }
func (e NotifyFailed) line() (string, []slog.Attr) {
	return "notifications do not arrive, polling", e.attrs(failure(e.Err))
}

// Recovered reports, once, that a reported condition has ended. The conditions of a
// consumer whose loop ends are not reported as recovered: ConsumerStopped ends them.
type Recovered struct {
	Worker
	Condition Condition
	Consumer  string        // empty: the condition is not of a single consumer
	Queue     string        // empty: the condition is not of a single queue
	Detail    string        // distinguishes conditions of one kind
	Lasted    time.Duration // since the first report
	Err       error         // the latest reported error; nil: none was reported
}

func (Recovered) level() slog.Level { return slog.LevelInfo }
func (e Recovered) line() (string, []slog.Attr) {
	return "recovered", e.attrs(slog.String("condition", string(e.Condition)), slog.String("consumer", e.Consumer), slog.String("queue", e.Queue),
		slog.String("detail", e.Detail), slog.Duration("lasted", e.Lasted), slog.Any("was", e.Err))
}

// WakeupSource is the source of a wakeup.
type WakeupSource string

const (
	WakeupEvents  WakeupSource = "events"  // a notification of the event store
	WakeupChanges WakeupSource = "changes" // workers, assignments or operators
)

// Woken reports that a notification has made the worker poll early.
type Woken struct{ Source WakeupSource }

func (Woken) level() slog.Level { return slog.LevelDebug }
func (e Woken) line() (string, []slog.Attr) {
	return "woken", []slog.Attr{slog.String("source", string(e.Source))}
}

// RolesHidden reports that the worker's role cannot inspect the transactions of the named
// roles, which may append events. The worker considers these transactions busy. Remedy:
// GRANT pg_read_all_stats to the worker's role.
type RolesHidden struct{ Roles string }

func (RolesHidden) level() slog.Level { return slog.LevelWarn }
func (e RolesHidden) line() (string, []slog.Attr) {
	return "cannot see the transactions of some roles that append, taking them to be busy: GRANT pg_read_all_stats to this role", []slog.Attr{slog.String("roles", e.Roles)}
}

// PoolTooSmall reports that the pool closes connections that the worker soon needs again,
// because the pool keeps few idle ones. Remedy: raise SetMaxIdleConns. It is reported once.
type PoolTooSmall struct {
	Closed      int64         // connections that the pool has closed
	Within      time.Duration // the time in which the pool closed them
	Recommended int           // for SetMaxIdleConns
}

func (PoolTooSmall) level() slog.Level { return slog.LevelWarn }
func (e PoolTooSmall) line() (string, []slog.Attr) {
	return "pool too small, it closes connections that are needed again at once: raise db.SetMaxIdleConns",
		[]slog.Attr{slog.Int64("closed", e.Closed), slog.Duration("within", e.Within), slog.Int("recommended", e.Recommended)}
}

// PoolSwept reports that idle connections of the pool did not answer and were closed.
type PoolSwept struct {
	Worker
	Idle  int // connections that were tested
	Alive int // connections that have answered; the others were closed
}

func (PoolSwept) level() slog.Level { return slog.LevelError }
func (e PoolSwept) line() (string, []slog.Attr) {
	return "closed dead connections of the pool", e.attrs(slog.Int("idle", e.Idle), slog.Int("alive", e.Alive))
}

// TaskFailed reports that the start, or a task in the background, has failed. The worker
// retries, or other workers do the task.
type TaskFailed struct {
	Worker
	Task     string // the task, in a few words of constant text
	Consumer string // empty: the task was not for a single consumer
	Err      error
	// Repeats reports that other events report the cause, for as long as it lasts. The
	// level is Debug.
	Repeats bool
}

func (e TaskFailed) level() slog.Level {
	if e.Repeats {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

func (e TaskFailed) line() (string, []slog.Attr) {
	return "task failed", e.attrs(slog.String("task", e.Task), slog.String("consumer", e.Consumer), failure(e.Err))
}

// HookPanicked reports that an Observer or another hook has panicked or called
// runtime.Goexit. A hook is a function of the program that does not belong to a job or a
// batch. It is reported once for each function, and for an Observer once for each type of
// event.
type HookPanicked struct {
	Worker
	Hook  string   // the function, or the type of event
	Panic string   // the panic's value
	Stack []string // by line; empty after runtime.Goexit
}

func (HookPanicked) level() slog.Level { return slog.LevelError }
func (e HookPanicked) line() (string, []slog.Attr) {
	return "hook panicked, going on; further panics of this hook are not reported", e.attrs(slog.String("hook", e.Hook), slog.String("panic", e.Panic), slog.Any("stack", e.Stack))
}
