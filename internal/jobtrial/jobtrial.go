// Package jobtrial is the door between packages jobs and workertest: what a test
// needs of jobs and a program does not. Package jobs sets the functions when it is
// initialized. Their types stand for those of package jobs, which imports this one.
package jobtrial

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"
)

// Given is a job for a handler. It needs no table.
type Given struct {
	Entry    any // a jobs.Entry
	Failures int // so far
}

// Outcome is how a run has ended, as a worker would store it.
type Outcome struct {
	State   string        // that the job has then
	Outcome string        // error, snoozed or released, if the job would run again
	Delay   time.Duration // until it would
	Counts  bool          // it is a failure
	Code    string
	Err     error // nil: it has completed
	Result  json.RawMessage
	Logs    []json.RawMessage
}

// Bench is the database of a trial.
type Bench interface {
	// Begin begins the transaction of a handler that takes one. check is given what
	// the handler has returned, and returns that or how it has harmed the transaction.
	Begin(ctx context.Context) (tx *sql.Tx, check func(error) error, err error)
	// Committed reports whether the transaction that had this txid was committed.
	Committed(ctx context.Context, txid string) (bool, error)
}

// Run gives jobs of one kind to their handler, in one call. handlers is a
// *jobs.Handlers. The outcomes are in order; err says why there are none.
var Run func(ctx context.Context, handlers any, jobs []Given, bench Bench) (all []Outcome, err error)

// Settings are what options say.
type Settings struct {
	Table  string
	Queues []string // those of WithQueue
}

// Of describes options, a []jobs.Option or a []jobs.ClientOption.
var Of func(options any) Settings

// Kinds are those that a *jobs.Handlers has handlers for.
var Kinds func(handlers any) []string
