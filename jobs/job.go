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

// Args are the arguments of a job. Kind names the handler; it is asked of a zero
// value too. The value itself is stored as JSON: fields that other programs of a
// rolling deployment do not know must do no harm.
type Args interface{ Kind() string }

// MaxArgs bounds the JSON of arguments, and of results, in bytes. Store what is
// larger elsewhere, and enqueue where it is.
const MaxArgs = 1 << 20

// Header is what is known of a job beside its arguments.
type Header struct {
	ID          int64
	Kind        string
	Queue       string
	Priority    int       // 1, the first, to 9
	RunAt       time.Time // when it was due; the zero Time: never, it is infinity
	Attempt     int       // counts the claims, this one included
	Failures    int       // of them, the failed ones so far
	MaxAttempts int       // failures after which the job has failed; 0, of Get: as its handler says
	Resets      int       // workers that were lost while they ran it
	Meta        json.RawMessage
}

// Job is what a handler is given. It is valid until the handler returns.
type Job[T Args] struct {
	Header
	Args T

	run *run
}

// SetResult sets the job's result, which Wait and Get return once the job has
// completed. It refuses what is no JSON or larger than [MaxArgs].
func (j *Job[T]) SetResult(v any) error {
	text, err := encode(v)
	if err != nil {
		return fmt.Errorf("jobs: result of job %d: %w", j.ID, err)
	}
	j.run.setResult(text)
	return nil
}

// Settle gives the job an outcome of its own, instead of the one that the handler
// of a batch returns for all: err is taken as if a handler had returned it for
// this job, nil completes it.
func (j *Job[T]) Settle(err error) { j.run.setOwn(err) }

// Log keeps an entry, anything that has a JSON form, beside the job, for
// [Client.Logs]. It is written at once, not in the transaction of the handler, and
// stays if that fails.
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

// CompleteTx completes the job in a transaction of the handler's own: effects and
// completion are committed together. Call it last, commit, and return nil. If it
// returns [ErrClaimLost], another worker runs the job: roll back. A handler that
// returns nil without having committed has failed.
//
// [RegisterTx] does all that.
func (j *Job[T]) CompleteTx(ctx context.Context, tx *sql.Tx) error {
	if tx == nil {
		return fmt.Errorf("jobs: complete job %d: tx is nil", j.ID)
	}
	if err := j.run.completeIn(ctx, tx); err != nil {
		return fmt.Errorf("jobs: complete job %d: %w", j.ID, errtext.Of(err))
	}
	return nil
}

// headerOf describes a claimed job for its handler.
func headerOf(j queue.Job, queue string, most int) Header {
	return Header{
		ID: j.ID, Kind: j.Kind, Queue: queue, Priority: j.Priority, RunAt: j.RunAt,
		Attempt: j.Attempt, Failures: j.Failures, MaxAttempts: most, Resets: j.Resets, Meta: j.Meta,
	}
}
