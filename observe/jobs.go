package observe

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// Job describes a job without its arguments. For a row of package jobs/table only ID,
// Failures and Resets are set.
type Job struct {
	ID          int64
	Kind        string
	Queue       string
	Priority    int       // 1, the first, to 9
	RunAt       time.Time // when it was due; the zero Time: infinity
	Attempt     int       // counts the claims, this one included
	Failures    int       // the failed claims before this run
	MaxAttempts int       // failures after which the job has failed
	Resets      int       // workers that died while they ran the job
	Meta        json.RawMessage
}

// attrs returns the attributes, without those that a row of a table lacks.
func (j Job) attrs(more ...slog.Attr) []slog.Attr {
	attrs := []slog.Attr{slog.Int64("job", j.ID)}
	if j.Queue != "" {
		attrs = append(attrs, slog.String("kind", j.Kind), slog.String("queue", j.Queue), slog.Int("attempt", j.Attempt))
	}
	return append(attrs, more...)
}

// JobsClaimed reports that the database has answered a claim.
type JobsClaimed struct {
	Queue string // empty for a table
	Jobs  int
	Took  time.Duration
}

func (JobsClaimed) level() slog.Level { return slog.LevelDebug }
func (e JobsClaimed) line() (string, []slog.Attr) {
	return "jobs claimed", []slog.Attr{slog.String("queue", e.Queue), slog.Int("jobs", e.Jobs), slog.Duration("took", e.Took)}
}

// The states of jobs, rows and runs of flows that decide levels.
const (
	stateCompleted = "completed"
	stateFailed    = "failed"
)

// JobDone reports that a run of a job has ended and its outcome is stored.
type JobDone struct {
	Job
	State  string        // the job's new state: a jobs.State or a table.State
	Failed bool          // the run counts as a failure
	Err    error         // the handler's error, or why the job is not completed; nil if it is
	Took   time.Duration // time of the handler
	Waited time.Duration // time from when the job was due until its start, by this process's clock; 0 for a table
}

func (e JobDone) level() slog.Level {
	switch {
	case e.State == stateFailed:
		return slog.LevelError
	case e.Failed:
		return slog.LevelWarn
	case e.State == stateCompleted:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

func (e JobDone) line() (string, []slog.Attr) {
	failures := e.Failures
	if e.Failed {
		failures++
	}
	attrs := e.attrs(slog.String("state", e.State), slog.Int("failures", failures), slog.Duration("took", e.Took))
	switch {
	case e.State == stateFailed:
		return "job failed", append(attrs, failure(e.Err))
	case e.Failed:
		return "job will be tried again", append(attrs, failure(e.Err))
	case e.State == stateCompleted:
		return "job done", append(attrs, slog.Duration("waited", e.Waited))
	}
	return "job did not complete", append(attrs, slog.Any("reason", e.Err))
}

// JobLost reports that a run no longer owns its job. Either the job was deleted from the table. Or,
// usually, the worker was considered dead, and another worker runs the job or will. Then effects of
// the run outside the job's transaction may happen twice.
type JobLost struct{ Job }

func (JobLost) level() slog.Level { return slog.LevelWarn }
func (e JobLost) line() (string, []slog.Attr) {
	return "job lost, to another worker or deleted", e.attrs()
}

// JobOverdue reports a handler that ignores the end of its context. For a table the call
// may also be PreHandle or Scan. Another worker runs the job again. The slot stays taken
// until the call returns.
type JobOverdue struct{ Job }

func (JobOverdue) level() slog.Level { return slog.LevelError }
func (e JobOverdue) line() (string, []slog.Attr) {
	return "handler ignores the end of its context, its slot is lost until it returns", e.attrs()
}

// JobReturned reports that a handler has returned after JobOverdue, and that its slot is
// free. Its result has no effect. Handlers that return after Start are not reported.
type JobReturned struct {
	Job
	Err  error         // the handler's result
	Took time.Duration // time since the handler got its slot; 0 for Scan, which has none
}

func (JobReturned) level() slog.Level { return slog.LevelWarn }
func (e JobReturned) line() (string, []slog.Attr) {
	return "handler that was given up has returned", e.attrs(slog.Duration("took", e.Took), failure(e.Err))
}

// JobsReset reports that jobs of dead workers were queued again, or have ended after too
// many resets. The leader reports it.
type JobsReset struct {
	Workers []uuid.UUID
	Back    int // jobs that run again
	Ended   int // jobs that have failed or were canceled
}

func (JobsReset) level() slog.Level { return slog.LevelWarn }
func (e JobsReset) line() (string, []slog.Attr) {
	return "jobs of dead workers reset", []slog.Attr{slog.Any("workers", e.Workers), slog.Int("back", e.Back), slog.Int("ended", e.Ended)}
}

// RowReset reports a row of a table whose worker died. This worker has queued the row
// again, or ended it.
type RowReset struct {
	ID    int64
	State string        // the new table.State of the row: queued, failed or canceled
	Age   time.Duration // of its last heartbeat
}

func (RowReset) level() slog.Level { return slog.LevelWarn }
func (e RowReset) line() (string, []slog.Attr) {
	return "job of a lost worker reset", []slog.Attr{slog.Int64("job", e.ID), slog.String("state", e.State), slog.Duration("heartbeat_age", e.Age)}
}

// RowsHidden reports claimed rows that the view of a table does not show. They are queued
// again, and are due after a pause that grows up to an hour.
type RowsHidden struct{ IDs []int64 }

func (RowsHidden) level() slog.Level { return slog.LevelWarn }
func (e RowsHidden) line() (string, []slog.Attr) {
	return "the view does not show claimed jobs", []slog.Attr{slog.Any("jobs", e.IDs)}
}

// JobsExpired reports that jobs have ended that did not start by their GoodUntil. The
// leader reports it.
type JobsExpired struct{ Jobs int }

func (JobsExpired) level() slog.Level { return slog.LevelWarn }
func (e JobsExpired) line() (string, []slog.Attr) {
	return "jobs expired", []slog.Attr{slog.Int("jobs", e.Jobs)}
}

// FlowRunEnded reports that a run of a flow has ended. The worker whose Advance of package
// flow has ended the run reports it once. A run is not reported if a Cancel ends it and no
// job was running. Nor is it reported if the database's answer was lost.
type FlowRunEnded struct {
	Run   int64 // the run's id
	Flow  string
	State string        // a jobs.State: completed, failed or cancelled
	Took  time.Duration // from its first start, by the database's clock
}

func (e FlowRunEnded) level() slog.Level {
	switch e.State {
	case stateFailed:
		return slog.LevelError
	case stateCompleted:
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

func (e FlowRunEnded) line() (string, []slog.Attr) {
	return "run of a flow ended", []slog.Attr{slog.String("flow", e.Flow), slog.Int64("run", e.Run), slog.String("state", e.State), slog.Duration("took", e.Took)}
}

// StatementFailed reports that statements on jobs fail, or that a table refuses to change a row.
// The worker retries, and keeps the outcomes that it cannot store. A refused job is reported once,
// a job whose row stays locked about once a second. The other jobs continue.
type StatementFailed struct {
	// Condition says which statements fail: ConditionQueue or ConditionSettle. For a table it is
	// ConditionDatabase, ConditionClaim, ConditionHeartbeat, ConditionSettle or ConditionReset.
	Condition Condition
	Queue     string // of ConditionQueue
	Table     string // of a worker of package jobs/table, as its options name it; empty: of package jobs
	Row       int64  // the id of the job whose row the database refuses to change; 0: not a single row
	Err       error
}

func (StatementFailed) level() slog.Level { return slog.LevelError }
func (e StatementFailed) line() (message string, attrs []slog.Attr) {
	condition := slog.String("condition", string(e.Condition))
	switch {
	case e.Row != 0 && e.Condition == ConditionQueue:
		return "the database refuses to change a job", []slog.Attr{condition, slog.String("queue", e.Queue), slog.Int64("job", e.Row), failure(e.Err)}
	case e.Row != 0:
		return "the table refuses to change a row", []slog.Attr{condition, slog.String("table", e.Table), slog.Int64("job", e.Row), failure(e.Err)}
	case e.Table != "":
		return "statement failed, retrying", []slog.Attr{condition, slog.String("table", e.Table), failure(e.Err)}
	case e.Condition == ConditionQueue:
		return "cannot claim jobs, retrying", []slog.Attr{condition, slog.String("queue", e.Queue), failure(e.Err)}
	}
	return "cannot store outcomes of jobs, retrying", []slog.Attr{condition, failure(e.Err)}
}

// UnknownKinds reports due jobs in a queue of this worker for which this worker has no
// handlers. Another worker may have them. It is reported when the kinds change.
type UnknownKinds struct {
	Queue string
	Kinds []string
}

func (UnknownKinds) level() slog.Level { return slog.LevelWarn }
func (e UnknownKinds) line() (string, []slog.Attr) {
	return "no handlers for jobs that are due", []slog.Attr{slog.String("queue", e.Queue), slog.Any("kinds", e.Kinds)}
}

// Ticked reports that this process has moved a schedule past a due tick, and has committed
// the move.
type Ticked struct {
	Schedule string
	Tick     time.Time     // the first due tick; also if several were missed
	Jobs     int           // jobs that were enqueued; 0: the schedule is paused, CatchUp is 0, or jobs.Unique left the job out
	Late     time.Duration // time from Tick until this process read it, by the database's clock
	Took     time.Duration // time until the commit, by this process's clock
}

func (Ticked) level() slog.Level { return slog.LevelDebug }
func (e Ticked) line() (string, []slog.Attr) {
	return "schedule ticked", []slog.Attr{slog.String("schedule", e.Schedule), slog.Time("tick", e.Tick), slog.Int("jobs", e.Jobs), slog.Duration("late", e.Late), slog.Duration("took", e.Took)}
}

// TickFailed reports that the job of a due tick could not be enqueued. The Scheduler
// retries.
type TickFailed struct {
	Schedule string
	Tick     time.Time
	Err      error
}

func (TickFailed) level() slog.Level { return slog.LevelError }
func (e TickFailed) line() (string, []slog.Attr) {
	return "the job of a schedule could not be enqueued, retrying", []slog.Attr{slog.String("schedule", e.Schedule), slog.Time("tick", e.Tick), failure(e.Err)}
}

// ScheduleForeign reports that another program has given a schedule other times, and
// enqueues its jobs. This program does not enqueue them until it starts again.
type ScheduleForeign struct{ Schedule string }

func (ScheduleForeign) level() slog.Level { return slog.LevelWarn }
func (e ScheduleForeign) line() (string, []slog.Attr) {
	return "another program has given a schedule other times, and enqueues its jobs; this one does not until it starts again", []slog.Attr{slog.String("schedule", e.Schedule)}
}
