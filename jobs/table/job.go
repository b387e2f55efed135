package table

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
)

// Header is the data of a job besides its record.
type Header struct {
	ID          int64
	NumFailures int // before this run
	NumResets   int // before this run
}

func (h Header) job() observe.Job {
	return observe.Job{ID: h.ID, Failures: h.NumFailures, Resets: h.NumResets}
}

// Job is the job that a handler gets. It is valid until the handler returns.
type Job[R any] struct {
	Header
	// Record is what Scan has returned for the row.
	Record R

	run *run
}

// Handler has the functions that handle jobs. Only Handle must be set. A panic of a hook is
// notified as [observe.HookPanicked].
type Handler[R any] struct {
	// Handle runs a job. nil completes the job. After an error the job is retried after RetryAfter,
	// or has failed: see [NonRetryable] and [RequeueAfter].
	Handle func(ctx context.Context, j *Job[R]) error
	// PreDequeue is called before rows are claimed. If dequeueable is false, nothing is claimed
	// until the next Interval. An error, which is notified as [observe.StatementFailed], and a
	// panic have the same effect. The context ends when the worker is to stop. The claimed rows meet
	// the condition c, if it has SQL. With a condition, one row is claimed at a time, so that
	// PreHandle can lower what the next condition allows.
	PreDequeue func(ctx context.Context) (dequeueable bool, c Condition, err error)
	// PreHandle is called before Handle, for one job after the other, with the context of the job.
	// The next claim waits for PreHandle, so it must return soon.
	PreHandle func(ctx context.Context, j *Job[R])
	// PostHandle is called after Handle has returned and the outcome is stored, by the goroutine of
	// Handle. Another worker may have the job by then. The context ends at ShutdownTimeout, or
	// after a stop has waited only for hooks for five seconds.
	PostHandle func(ctx context.Context, j *Job[R])
}

// Condition is SQL on the columns of the table, such as "j.megabytes <= $1". Args are the values of
// its parameters. String literals of the condition must not contain a $.
type Condition struct {
	SQL  string
	Args []any
}

// Log appends an entry to the execution_logs of the job. The entry may be anything that has a JSON
// form. Log returns the number of the entry, 1 for the first. The entry is written at once, in a
// statement of its own. It stays until the job is claimed again, whatever the outcome of the job.
// If the job does not belong to this worker any more, Log returns [ErrClaimLost].
func (j *Job[R]) Log(ctx context.Context, entry any) (number int, err error) {
	text, err := j.run.entry(entry)
	if err != nil {
		return 0, err
	}
	err = j.run.logged(ctx, j.run.env.sql.log, &number, text)
	return number, err
}

// UpdateLog replaces an entry of Log.
func (j *Job[R]) UpdateLog(ctx context.Context, number int, entry any) error {
	text, err := j.run.entry(entry)
	if err != nil {
		return err
	}
	var entries int
	if err := j.run.logged(ctx, j.run.env.sql.relog, &entries, text, number); err != nil {
		return err
	}
	if number < 1 || number > entries {
		return fmt.Errorf("jobs/table: log of job %d: there is no entry %d, there are %d", j.ID, number, entries)
	}
	return nil
}

// CompleteTx completes the job in a transaction of the handler's own. Effects and completion are
// committed together. Call it last, commit, and return nil. If it returns [ErrClaimLost], another
// worker has the job: roll back. If a handler returns nil without a commit, the run counts as a
// failure.
func (j *Job[R]) CompleteTx(ctx context.Context, tx *sql.Tx) error {
	if tx == nil {
		return fmt.Errorf("jobs/table: complete job %d: tx is nil", j.ID)
	}
	if err := j.run.completeIn(ctx, tx); err != nil {
		return fmt.Errorf("jobs/table: complete job %d: %w", j.ID, errtext.Of(err))
	}
	return nil
}

// entry returns the JSON of a log entry.
func (r *run) entry(entry any) (text string, err error) {
	var b []byte
	err = recovered("the entry", func() (err error) {
		b, err = json.Marshal(entry)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("jobs/table: log of job %d: %w", r.header.ID, errtext.Of(err))
	}
	return string(b), nil
}

// logged runs a statement about the log of the run. The statement may wait for the row.
func (r *run) logged(ctx context.Context, statement string, into *int, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, r.env.limit)
	defer cancel()
	args = append([]any{r.Claim.ID, r.Claim.Claim, r.env.host}, args...)
	err := pgdriver.Repeated(func() error { return r.env.store.db.QueryRowContext(ctx, statement, args...).Scan(into) })
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("jobs/table: log of job %d: %w", r.header.ID, ErrClaimLost)
	case err != nil:
		return fmt.Errorf("jobs/table: log of job %d: %w", r.header.ID, errtext.Of(err))
	}
	return nil
}

// completeIn completes the job in a transaction of the handler's own.
func (r *run) completeIn(ctx context.Context, tx *sql.Tx) error {
	r.byTx.Store(true)
	settled, err := r.env.settleOn(ctx, tx, []end{{claim: r.Claim, To: StateCompleted}})
	if err != nil {
		return err
	}
	switch state, is := settled[r.Claim]; {
	case !is:
		return ErrClaimLost
	case state == "":
		return errHeld
	case state == unchanged:
		return errUnchanged
	case state != StateCompleted:
		return ErrClaimLost
	}
	return nil
}
