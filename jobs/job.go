package jobs

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/queue"
)

// Args are the arguments of a job. Kind names the handler. Kind is also called on a zero value. The
// arguments are stored as JSON. A rolling deployment runs old and new programs at once. So only add
// fields, let unknown fields do no harm, and give arguments whose meaning changes a new kind.
type Args interface{ Kind() string }

// MaxArgs bounds the JSON of arguments and of results, in bytes. Store larger data elsewhere, and
// enqueue its location.
const MaxArgs = 1 << 20

// Header is the data of a job besides its arguments.
type Header struct {
	ID          int64
	Kind        string
	Queue       string
	Priority    int       // 1 (first) to 9
	RunAt       time.Time // when it was due; the zero Time: infinity
	Attempt     int       // number of claims, including this one
	Failures    int       // number of failed attempts so far
	MaxAttempts int       // failures after which the job has failed; 0 from Get: the default of its handler
	Resets      int       // number of workers that were lost while they ran it
	Meta        json.RawMessage
}

// Job is the job that a handler gets. It is valid until the handler returns.
type Job[T Args] struct {
	Header
	Args T

	run *run
}

// SetResult sets the result of the job. Wait and Get return the result once the job has completed.
// SetResult refuses a value that has no JSON form or is larger than [MaxArgs].
func (j *Job[T]) SetResult(v any) error {
	text, err := encode(v)
	if err != nil {
		return fmt.Errorf("jobs: result of job %d: %w", j.ID, err)
	}
	j.run.setResult(text)
	return nil
}

// Settle gives the job an outcome of its own, instead of the error that a batch handler returns for
// all jobs. err counts as if a handler had returned it for this job; nil completes the job.
func (j *Job[T]) Settle(err error) { j.run.setOwn(err) }

// Log stores an entry for [Client.Logs]. The entry may be anything that has a JSON form. It is
// written at once, outside of the handler's transaction, and stays if the transaction is rolled
// back.
func (j *Job[T]) Log(ctx context.Context, entry any) error {
	text, err := encode(entry)
	if err == nil {
		err = j.run.log(ctx, text)
	}
	if err != nil {
		return fmt.Errorf("jobs: log of job %d: %w", j.ID, errtext.Of(err))
	}
	return nil
}

// CompleteTx completes the job in a transaction of the handler's own. Effects and completion are
// committed together. Call it last, commit, and return nil. If it returns [ErrClaimLost], another
// worker runs the job: roll back. If a handler returns nil without a commit, the run counts as a
// failure.
//
// [RegisterTx] does all these steps.
func (j *Job[T]) CompleteTx(ctx context.Context, tx *sql.Tx) error {
	if tx == nil {
		return fmt.Errorf("jobs: complete job %d: tx is nil", j.ID)
	}
	if err := j.run.completeIn(ctx, tx); err != nil {
		return fmt.Errorf("jobs: complete job %d: %w", j.ID, errtext.Of(err))
	}
	return nil
}

// headerOf returns the Header of a claimed job.
func headerOf(j queue.Job, queue string, most int) Header {
	return Header{
		ID: j.ID, Kind: j.Kind, Queue: queue, Priority: j.Priority, RunAt: j.RunAt,
		Attempt: j.Attempt, Failures: j.Failures, MaxAttempts: most, Resets: j.Resets, Meta: j.Meta,
	}
}

// State is the state of a job or of a step of a flow.
type State string

const (
	StateWaiting   State = "waiting"   // steps only: waits for other steps
	StateAvailable State = "available" // to run, now or when it is due
	StateRunning   State = "running"
	StateCompleted State = "completed"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
	StateExpired   State = "expired" // it did not start by its GoodUntil
	StateSkipped   State = "skipped" // steps only
)

// Finished reports whether a job in this state has ended.
func (s State) Finished() bool {
	switch s {
	case StateCompleted, StateFailed, StateCancelled, StateExpired, StateSkipped:
		return true
	}
	return false
}
