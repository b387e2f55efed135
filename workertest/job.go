package workertest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/delivery"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobdryrun"
	"github.com/pgfrontier/worker/jobs"
)

// GivenJob is a job for [HandleJobs].
type GivenJob struct {
	Args jobs.Args
	// Options are the options of Enqueue. jobs.Meta and jobs.MaxAttempts, for example, are
	// visible in the handler. Keys are ignored.
	Options []jobs.EnqueueOption
	// Failures is how often the job has failed before this attempt.
	Failures int
}

// JobOutcome is the outcome that a worker would store for a run.
type JobOutcome struct {
	// State is the state of the job after the run: completed, failed, cancelled, or available
	// to run again.
	State jobs.State
	// Err is why the job has not completed, nil if it has. It is the handler's error, a
	// [observe.PanicError], or an error that is [jobs.ErrTimeout].
	Err  error
	Code string // of Err
	// Again is the delay after which an available job would run again. Counted reports whether
	// the run counts as a failure; a snoozed run does not.
	Again   time.Duration
	Counted bool
	Result  json.RawMessage   // of SetResult; nil: none
	Logs    []json.RawMessage // of Log
}

// HandleJob calls the handler of args' kind, as a worker calls it for a job in its first
// attempt. No queue and no table of jobs is needed. The arguments are converted to JSON and
// back.
//
// HandleJob always rolls back the transaction of a handler of [jobs.RegisterTx]. Before that,
// if the job has completed, it calls inspect in the transaction, which reads the handler's writes.
// Any other handler receives no transaction: its writes stay, and inspect reads in a separate
// transaction. inspect may be nil. db may be nil if neither needs it.
//
// The outcome is the job's. The error is the outcome's Err, or inspect's error, unchanged. A nil
// error means that the job has completed and inspect has returned nil. A handler that ends its
// transaction gets [jobs.ErrTxEnded], with every driver. Its writes may then stay.
func HandleJob(ctx context.Context, db *sql.DB, h *jobs.Handlers, args jobs.Args, inspect func(tx *sql.Tx) error) (JobOutcome, error) {
	all, err := HandleJobs(ctx, db, h, []GivenJob{{Args: args}}, inspect)
	if len(all) == 0 {
		return JobOutcome{}, err
	}
	return all[0], err
}

// HandleJobs is [HandleJob] for a batch: jobs of one kind in one call. The jobs may have
// options of Enqueue, and may have failed before. The outcomes are in the order of the jobs.
// The error is the first error of an outcome.
//
// A worker searches for the one job that makes a batch fail. HandleJobs does not: all jobs
// without an outcome of their own get the error.
func HandleJobs(ctx context.Context, db *sql.DB, h *jobs.Handlers, given []GivenJob, inspect func(tx *sql.Tx) error) (all []JobOutcome, err error) {
	if h == nil {
		return nil, errors.New("workertest: the handlers are nil")
	}
	b := &dryRun{db: db}
	defer b.close()
	list := make([]jobdryrun.Given, len(given))
	for i, g := range given {
		list[i] = jobdryrun.Given{Entry: jobs.EnqueueParams{Args: g.Args, Options: g.Options}, Failures: max(g.Failures, 0)}
	}
	outcomes, err := jobdryrun.Run(ctx, h, list, b)
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
	if inspect == nil || !completed {
		return all, err
	}
	if b.tx == nil {
		if _, _, _, err := b.Begin(ctx); err != nil {
			return all, fmt.Errorf("workertest: a transaction to inspect: %w", err)
		}
	}
	if inspected := inspect(b.tx); inspected != nil {
		return all, inspected
	}
	return all, err
}

// dryRun has the transaction of a handler, in which inspect reads.
type dryRun struct {
	db   *sql.DB
	conn *sql.Conn
	tx   *sql.Tx
}

func (b *dryRun) Begin(ctx context.Context) (handling context.Context, tx *sql.Tx, check func(error) error, err error) {
	if b.db == nil {
		return nil, nil, nil, errors.New("db is nil")
	}
	if b.conn, err = b.db.Conn(ctx); err != nil {
		return nil, nil, nil, err
	}
	if b.tx, err = b.conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}); err != nil {
		return nil, nil, nil, err
	}
	t, err := number(ctx, b.tx, b.conn)
	return delivery.WithConn(ctx, delivery.LenderOf(b.conn)), b.tx, func(err error) error {
		err = t.check(ctx, err)
		if errors.Is(err, worker.ErrTransactionEnded) {
			err = fmt.Errorf("%w: %w", jobs.ErrTxEnded, err)
		}
		return err
	}, err
}

func (b *dryRun) Committed(ctx context.Context, txid string) (bool, error) {
	if b.db == nil {
		return false, errors.New("db is nil: HandleJobs needs db to read the status of CompleteTx's transaction")
	}
	var status sql.NullString
	err := b.db.QueryRowContext(ctx, `SELECT txid_status($1::bigint)`, txid).Scan(&status)
	return status.String == committed, err
}

func (b *dryRun) close() {
	if b.tx != nil {
		_ = b.tx.Rollback()
	}
	if b.conn != nil {
		_ = b.conn.Close()
	}
}
