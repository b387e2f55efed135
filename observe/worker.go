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
)

// Worker names the worker that reports an event.
type Worker struct {
	Kind Kind
	ID   uuid.UUID // in the tables; zero for a Scheduler
}

func (w Worker) attrs(more ...slog.Attr) []slog.Attr {
	return append(more, slog.String("worker", string(w.Kind)), slog.Any("worker_id", w.ID))
}

// failure returns the attributes of an error.
func failure(err error) slog.Attr { return slog.Any("error", err) }

// WorkerStarted: the checks of the start have succeeded, the worker is registered, and it runs.
type WorkerStarted struct {
	Worker
	Consumers int // consumers that the worker has code for; 0 for workers of jobs
}

func (WorkerStarted) level() slog.Level { return slog.LevelInfo }
func (e WorkerStarted) line() (string, []slog.Attr) {
	return "worker started", e.attrs(slog.Int("consumers", e.Consumers))
}

// WorkerStopped: everything of the worker has ended.
type WorkerStopped struct {
	Worker
	Err     error // why it stopped, nil after a clean stop
	Drained bool  // an operator has drained it; without an Err, Start goes on waiting for Stop
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

// ShutdownTimedOut: a stop has taken longer than WithShutdownTimeout. The batches in flight are
// rolled back.
type ShutdownTimedOut struct {
	Worker
	Err error // names the option
}

func (ShutdownTimedOut) level() slog.Level { return slog.LevelError }
func (e ShutdownTimedOut) line() (string, []slog.Attr) {
	return "shutdown timed out", e.attrs(failure(e.Err))
}

// WorkerReregistered: the worker's row was gone, and the worker has registered again.
type WorkerReregistered struct{ Worker }

func (WorkerReregistered) level() slog.Level { return slog.LevelInfo }
func (e WorkerReregistered) line() (string, []slog.Attr) {
	return "registered again, the worker's row was gone", e.attrs()
}

// StaleWorkersRemoved: this worker has removed rows of workers that are long dead, when it
// registered or as the leader.
type StaleWorkersRemoved struct {
	Worker
	Rows int
}

func (StaleWorkersRemoved) level() slog.Level { return slog.LevelInfo }
func (e StaleWorkersRemoved) line() (string, []slog.Attr) {
	return "removed stale workers", e.attrs(slog.Int("rows", e.Rows))
}

// LeadershipChanged: this worker has become the leader, or is the leader no longer. The leader of
// event workers assigns the consumers. The leader of job workers gives the jobs of dead workers to
// others, and removes what is old.
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

// Rebalanced: this worker leads and has changed assignments.
type Rebalanced struct {
	Workers int // live ones
	Changes int // consumers that were assigned, or taken from a worker
}

func (Rebalanced) level() slog.Level { return slog.LevelInfo }
func (e Rebalanced) line() (string, []slog.Attr) {
	return "rebalanced", []slog.Attr{slog.Int("workers", e.Workers), slog.Int("changes", e.Changes)}
}

// CoordinationFailed: heartbeats, leadership or assignments do not work. The worker tries again;
// each failed attempt is reported.
type CoordinationFailed struct {
	Worker
	Err error
}

func (CoordinationFailed) level() slog.Level { return slog.LevelError }
func (e CoordinationFailed) line() (string, []slog.Attr) {
	return "coordination failed, retrying", e.attrs(failure(e.Err))
}

// NotifyFailed: notifications do not arrive. The listening connection was lost (reported for each
// attempt), does not answer, or leads to another database, or nothing notifies the channel. The
// worker polls until they arrive again.
type NotifyFailed struct {
	Worker
	Err error
}

func (NotifyFailed) level() slog.Level { return slog.LevelError }
func (e NotifyFailed) line() (string, []slog.Attr) {
	return "notifications do not arrive, polling", e.attrs(failure(e.Err))
}

// Recovered: a condition that was reported has ended. It is reported once. The conditions of a
// consumer whose loop ends are not reported as recovered: ConsumerStopped ends them.
type Recovered struct {
	Worker
	Condition Condition
	Consumer  string        // of which consumer; empty if it was not a single consumer's
	Queue     string        // of which queue; empty if it was not a single queue's
	Detail    string        // tells conditions of one kind apart
	Lasted    time.Duration // since it was reported first
	Err       error         // as it was reported last, nil if no error was reported
}

func (Recovered) level() slog.Level { return slog.LevelInfo }
func (e Recovered) line() (string, []slog.Attr) {
	return "recovered", e.attrs(slog.String("condition", string(e.Condition)), slog.String("consumer", e.Consumer), slog.String("queue", e.Queue),
		slog.String("detail", e.Detail), slog.Duration("lasted", e.Lasted), slog.Any("was", e.Err))
}

// WakeupSource is where a wakeup came from.
type WakeupSource string

const (
	WakeupEvents  WakeupSource = "events"  // a notification of the event store
	WakeupChanges WakeupSource = "changes" // workers, assignments or operators
)

// Woken: a notification has made the worker poll before its time.
type Woken struct{ Source WakeupSource }

func (Woken) level() slog.Level { return slog.LevelDebug }
func (e Woken) line() (string, []slog.Attr) {
	return "woken", []slog.Attr{slog.String("source", string(e.Source))}
}

// RolesHidden: the worker's role cannot see what transactions of the named roles do, which may
// append events. It takes them to be busy. Remedy: GRANT pg_read_all_stats to the worker's role.
type RolesHidden struct{ Roles string }

func (RolesHidden) level() slog.Level { return slog.LevelWarn }
func (e RolesHidden) line() (string, []slog.Attr) {
	return "cannot see the transactions of some roles that append, taking them to be busy: GRANT pg_read_all_stats to this role", []slog.Attr{slog.String("roles", e.Roles)}
}

// PoolTooSmall: the pool closes connections that the worker needs again at once, as it keeps few
// idle ones. Remedy: raise SetMaxIdleConns. It is reported once.
type PoolTooSmall struct {
	Closed      int64         // connections that the pool has closed
	Within      time.Duration // that time
	Recommended int           // for SetMaxIdleConns
}

func (PoolTooSmall) level() slog.Level { return slog.LevelWarn }
func (e PoolTooSmall) line() (string, []slog.Attr) {
	return "pool too small, it closes connections that are needed again at once: raise db.SetMaxIdleConns",
		[]slog.Attr{slog.Int64("closed", e.Closed), slog.Duration("within", e.Within), slog.Int("recommended", e.Recommended)}
}

// PoolSwept: idle connections of the pool did not answer, and were closed.
type PoolSwept struct {
	Worker
	Idle  int // connections that were tested
	Alive int // connections that have answered; the others were closed
}

func (PoolSwept) level() slog.Level { return slog.LevelError }
func (e PoolSwept) line() (string, []slog.Attr) {
	return "closed dead connections of the pool", e.attrs(slog.Int("idle", e.Idle), slog.Int("alive", e.Alive))
}

// TaskFailed: the start, or a task in the background, has failed. The worker tries again, or other
// workers do the task.
type TaskFailed struct {
	Worker
	Task     string // what was tried, in a few words that stay the same
	Consumer string // empty: the task was not for a single consumer
	Err      error
	// Repeats: the cause is reported by other events, for as long as it lasts. The level is Debug.
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

// HookPanicked: an Observer, or another function of the program's that no job or batch is to blame
// for, has panicked or called runtime.Goexit. It is reported once for each function, and for an
// Observer once for each type of event.
type HookPanicked struct {
	Worker
	Hook  string   // the function, or the type of event
	Panic string   // the value
	Stack []string // by line; empty after runtime.Goexit
}

func (HookPanicked) level() slog.Level { return slog.LevelError }
func (e HookPanicked) line() (string, []slog.Attr) {
	return "hook panicked, going on; further panics of this hook are not reported", e.attrs(slog.String("hook", e.Hook), slog.String("panic", e.Panic), slog.Any("stack", e.Stack))
}
