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

// Header is what is known of a job beside its record.
type Header struct {
	ID          int64
	NumFailures int // before this run
	NumResets   int // likewise
}

func (h Header) job() observe.Job {
	return observe.Job{ID: h.ID, Failures: h.NumFailures, Resets: h.NumResets}
}

// Job is what a handler is given. It is valid until the handler returns.
type Job[R any] struct {
	Header
	// Record is what Scan has made of the row.
	Record R

	run *run
}

// Handler is what is done with jobs. Only Handle must be set. A panic of a hook is told
// by [observe.HookPanicked].
type Handler[R any] struct {
	// Handle runs a job. nil completes it. After an error it is tried again RetryAfter
	// later, or has failed: see [NonRetryable] and [RequeueAfter].
	Handle func(ctx context.Context, j *Job[R]) error
	// PreDequeue is called before rows are claimed. dequeueable false leaves the claim
	// out until the next Interval, and so do an error, which is told by
	// [observe.TableFailed], and a panic. Its context ends when the worker is to stop. The
	// condition, if it has any SQL, must be met by what is claimed. That is one row then,
	// so that PreHandle can lower what the next condition allows.
	PreDequeue func(ctx context.Context) (dequeueable bool, c Condition, err error)
	// PreHandle is called before a job's Handle, for one job after the other, and has the
	// context of that. The next claim waits for it: return soon.
	PreHandle func(ctx context.Context, j *Job[R])
	// PostHandle is called after Handle has returned and what became of the job is
	// stored, by the goroutine of its Handle. The job may be another worker's by then. Its
	// context ends at ShutdownTimeout, or after a stop has waited for hooks alone for five
	// seconds.
	PostHandle func(ctx context.Context, j *Job[R])
}

// Condition is SQL on the columns of the table, such as "j.megabytes <= $1", with Args
// for its parameters. It must not have a $ in its texts.
type Condition struct {
	SQL  string
	Args []any
}

// Log appends an entry, anything that has a JSON form, to the job's execution_logs, and
// returns its number, 1 for the first. It is written at once, in a statement of its own,
// and stays whatever becomes of the job, until the job is claimed again. The error is
// [ErrClaimLost] if the job is not this worker's any more.
func (j *Job[R]) Log(ctx context.Context, entry any) (number int, err error) {
	text, err := j.run.entry(entry)
	if err != nil {
		return 0, err
	}
	err = j.run.logged(ctx, j.run.w.sql.log, &number, text)
	return number, err
}

// UpdateLog replaces an entry that Log has appended.
func (j *Job[R]) UpdateLog(ctx context.Context, number int, entry any) error {
	text, err := j.run.entry(entry)
	if err != nil {
		return err
	}
	var entries int
	if err := j.run.logged(ctx, j.run.w.sql.relog, &entries, text, number); err != nil {
		return err
	}
	if number < 1 || number > entries {
		return fmt.Errorf("jobs/table: log of job %d: there is no entry %d, there are %d", j.ID, number, entries)
	}
	return nil
}

// CompleteTx completes the job in a transaction of the handler's own: effects and
// completion are committed together. Call it last, commit, and return nil. If it
// returns [ErrClaimLost], the job is another's: roll back. A handler that returns nil
// without having committed has failed.
func (j *Job[R]) CompleteTx(ctx context.Context, tx *sql.Tx) error {
	if tx == nil {
		return fmt.Errorf("jobs/table: complete job %d: tx is nil", j.ID)
	}
	if err := j.run.completeIn(ctx, tx); err != nil {
		return fmt.Errorf("jobs/table: complete job %d: %w", j.ID, errtext.Of(err))
	}
	return nil
}

// entry is the JSON of an entry of the log.
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

// logged runs a statement about the log of the run, which may wait for the row.
func (r *run) logged(ctx context.Context, statement string, into *int, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, r.w.limit)
	defer cancel()
	args = append([]any{r.claim.ID, r.claim.Claim, r.w.host}, args...)
	err := pgdriver.Repeated(func() error { return r.w.store.db.QueryRowContext(ctx, statement, args...).Scan(into) })
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("jobs/table: log of job %d: %w", r.header.ID, ErrClaimLost)
	case err != nil:
		return fmt.Errorf("jobs/table: log of job %d: %w", r.header.ID, errtext.Of(err))
	}
	return nil
}

// errHeld is a row that another transaction holds.
var errHeld = errors.New("another transaction holds the row: end it first")

// completeIn completes the job in a transaction of the handler's.
func (r *run) completeIn(ctx context.Context, tx *sql.Tx) error {
	r.mu.Lock()
	r.byTx = true
	r.mu.Unlock()
	settled, err := r.w.settleOn(ctx, tx, []end{{claim: r.claim, To: StateCompleted}})
	if err != nil {
		return err
	}
	switch state, is := settled[r.claim]; {
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
