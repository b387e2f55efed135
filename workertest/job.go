package workertest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobtrial"
	"github.com/pgfrontier/worker/jobs"
)

// GivenJob is a job for [HandleJobs].
type GivenJob struct {
	Args jobs.Args
	// Options are those of Enqueue: jobs.Meta and jobs.MaxAttempts show in the
	// handler, for two. Keys are not looked at.
	Options []jobs.EnqueueOption
	// Failures is how often the job has failed before. This attempt is the one
	// after them.
	Failures int
}

// JobOutcome is what a worker would store about a run.
type JobOutcome struct {
	// State is that of the job after the run: completed, failed or cancelled, or
	// available if it would run again.
	State jobs.State
	// Err is why the job has not completed, nil if it has: what the handler
	// returned, a [jobs.PanicError], or an error that is [jobs.ErrTimeout].
	Err  error
	Code string // of Err
	// Again is after what time an available job would run again, and Counted
	// whether the run counts as a failure. One that was snoozed does not.
	Again   time.Duration
	Counted bool
	Result  json.RawMessage   // of SetResult; nil: none
	Logs    []json.RawMessage // of Log
}

// HandleJob gives arguments to the handler of their kind, as a worker would give
// it a job in its first attempt. There is no queue, and no table of jobs is
// needed. The arguments become JSON and are read again on the way.
//
// The transaction of a handler of [jobs.RegisterTx] is rolled back in any case.
// Before that, HandleJob calls look in it, if the job has completed: look reads
// what the handler has written. Any other handler is given no transaction: what it
// writes stays, and look reads in a transaction of its own. look may be nil; db
// too, if neither needs it.
//
// The outcome says what becomes of the job. The error is the outcome's Err, or
// look's, as they are: nil means that the job has completed, and look is content.
// A handler that ends its transaction gets [jobs.ErrTxEnded], with every driver.
// What it wrote may then stay.
func HandleJob(ctx context.Context, db *sql.DB, h *jobs.Handlers, args jobs.Args, look func(tx *sql.Tx) error) (JobOutcome, error) {
	all, err := HandleJobs(ctx, db, h, []GivenJob{{Args: args}}, look)
	if len(all) == 0 {
		return JobOutcome{}, err
	}
	return all[0], err
}

// HandleJobs is [HandleJob] for a batch, all of one kind and in one call, and for
// jobs that were enqueued with options or have failed before. The outcomes are in
// the order of the jobs. The error is the first outcome's that has one.
//
// A worker looks for the one job that makes a batch fail. HandleJobs does not: all
// jobs without an outcome of their own get the error.
func HandleJobs(ctx context.Context, db *sql.DB, h *jobs.Handlers, given []GivenJob, look func(tx *sql.Tx) error) (all []JobOutcome, err error) {
	if h == nil {
		return nil, errors.New("workertest: the handlers are nil")
	}
	b := &bench{db: db}
	defer b.close()
	list := make([]jobtrial.Given, len(given))
	for i, g := range given {
		list[i] = jobtrial.Given{Entry: jobs.Entry{Args: g.Args, Options: g.Options}, Failures: max(g.Failures, 0)}
	}
	outcomes, err := jobtrial.Run(ctx, h, list, b)
	if err != nil {
		return nil, fmt.Errorf("workertest: %w", errtext.Of(err))
	}
	completed := false
	for _, o := range outcomes {
		all = append(all, JobOutcome{State: jobs.State(o.State), Err: o.Err, Code: o.Code, Again: o.Delay, Counted: o.Counts, Result: o.Result, Logs: o.Logs})
		completed = completed || o.Err == nil
		if err == nil {
			err = o.Err
		}
	}
	if look == nil || !completed {
		return all, err
	}
	if b.tx == nil {
		if _, _, err := b.Begin(ctx); err != nil {
			return all, fmt.Errorf("workertest: a transaction to look: %w", err)
		}
	}
	if looked := look(b.tx); looked != nil {
		return all, looked
	}
	return all, err
}

// bench has the transaction in which a handler works, and look reads.
type bench struct {
	db   *sql.DB
	conn *sql.Conn
	tx   *sql.Tx
}

func (b *bench) Begin(ctx context.Context) (tx *sql.Tx, check func(error) error, err error) {
	if b.db == nil {
		return nil, nil, errors.New("db is nil")
	}
	if b.conn, err = b.db.Conn(ctx); err != nil {
		return nil, nil, err
	}
	if b.tx, err = b.conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}); err != nil {
		return nil, nil, err
	}
	t, err := number(ctx, b.tx, b.conn)
	return b.tx, func(err error) error {
		err = t.check(ctx, err)
		if errors.Is(err, worker.ErrTransactionEnded) {
			err = fmt.Errorf("%w: %w", jobs.ErrTxEnded, err)
		}
		return err
	}, err
}

func (b *bench) Committed(ctx context.Context, txid string) (bool, error) {
	if b.db == nil {
		return false, errors.New("db is nil: it tells what has become of the transaction of CompleteTx")
	}
	var status sql.NullString
	err := b.db.QueryRowContext(ctx, `SELECT txid_status($1::bigint)`, txid).Scan(&status)
	return status.String == committed, err
}

func (b *bench) close() {
	if b.tx != nil {
		_ = b.tx.Rollback()
	}
	if b.conn != nil {
		_ = b.conn.Close()
	}
}
