// Package jobflow is the door between packages jobs and jobs/flow: what flows need of
// jobs and a program does not. Package jobs sets the functions when it is initialized.
// Their types stand for those of package jobs, which imports this one.
package jobflow

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/pgfrontier/worker/internal/awaited"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/tables"
)

// Client is what a *jobs.Client has.
type Client struct {
	DB     pgdriver.Pool
	Tables tables.Jobs
	Queue  *queue.Queue
	Ends   *awaited.Ends
	Err    error // of its options
}

// Of opens a *jobs.Client, which must not be nil.
var Of func(client any) Client

// Job makes a job of arguments, a jobs.Args, and options, a []jobs.EnqueueOption.
var Job func(args, options any) (queue.NewJob, error)

// Encode returns JSON that PostgreSQL takes.
var Encode func(v any) (json.RawMessage, error)

// Companion runs beside a worker. The worker calls Prepare before it registers, then Run
// in a goroutine, and waits for its end before Start returns.
type Companion interface {
	// Prepare reports what is missing in the database. Start returns that.
	Prepare(ctx context.Context, conn *sql.Conn, w Worker) error
	// Run runs until ctx ends, which it does after the worker's last job was settled.
	Run(ctx context.Context)
	// Ended tells that a job of the worker has finished, and that this is stored. Many
	// goroutines call it; it must not block.
	Ended(meta json.RawMessage)
}

// The codes of steps that only flows give.
const (
	CodeSkipped   = "SKIPPED"   // the handler has skipped the step
	CodeForgotten = "FORGOTTEN" // the step's job is in no table
	CodeNoList    = "NO_LIST"   // the result that is to be spread is no list
	CodeTooFew    = "TOO_FEW"   // the list is shorter than the quorum
)

// Skipped is the error of a handler that has skipped its step.
type Skipped struct{ Why string }

func (s Skipped) Error() string {
	if s.Why == "" {
		return "the step is not needed"
	}
	return s.Why
}

// Code is CodeSkipped.
func (Skipped) Code() string { return CodeSkipped }

// Worker is what a companion knows of its worker.
type Worker struct {
	Tables    tables.Jobs
	Retention time.Duration // 0: for ever
	Limit     time.Duration // of a statement

	On     func(ctx context.Context, f func(conn *sql.Conn) error) error // calls f with a connection of the worker's pool
	Wake   func()                                                        // makes the worker look for jobs
	Failed func(task string, err error)                                  // tells of what failed; nil errors are left out

	RunEnded func(EndedRun) // tells of a run that has ended
}

// EndedRun is a run of a flow that has ended.
type EndedRun struct {
	Run         int64
	Flow, State string
	Took        int64 // microseconds since its start
}

// Beside returns a jobs.Option that gives each worker a companion.
var Beside func(make func() Companion) any
