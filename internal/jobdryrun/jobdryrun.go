// Package jobdryrun connects packages jobs and workertest. It has what tests need of jobs and
// programs do not. Package jobs sets the functions when it is initialized. Types of package jobs
// appear as any, since package jobs imports this package.
package jobdryrun

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/pgfrontier/worker/store"
)

// Given is a job for a dry run. It needs no table.
type Given struct {
	Entry    any // a jobs.EnqueueParams
	Failures int // failures so far
}

// Outcome is the outcome of a run, as a worker would store it.
type Outcome struct {
	State   string        // state of the job
	Outcome string        // error, snoozed or released, if the job would run again
	Delay   time.Duration // delay before the job would run again
	Counts  bool          // the outcome counts as a failure
	Code    string
	Err     error // nil: the job has completed
	Result  json.RawMessage
	Logs    []json.RawMessage
}

// Database is the database of a dry run.
type Database interface {
	// Begin begins the transaction of a handler that takes one. handling is ctx with the
	// connection. check gets the error that the handler has returned. check returns this error,
	// or how the handler has harmed the transaction.
	Begin(ctx context.Context) (handling context.Context, tx *sql.Tx, check func(error) error, err error)
	// Committed reports whether the transaction with this txid was committed.
	Committed(ctx context.Context, txid string) (bool, error)
}

// Run calls the handler once with jobs of one kind. handlers is a *jobs.Handlers. The outcomes are
// in the order of the jobs. err is why there are none.
var Run func(ctx context.Context, handlers any, jobs []Given, db Database) (all []Outcome, err error)

// Settings are the values of options.
type Settings struct {
	Names  store.Names
	Queues []string // names of WithQueue
}

// Of returns the values of options: a []jobs.Option or a []jobs.ClientOption.
var Of func(options any) Settings

// Kinds returns the kinds for which a *jobs.Handlers has handlers.
var Kinds func(handlers any) []string
