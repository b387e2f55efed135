// Package jobflow connects package jobs with jobs/flow and jobs/schedule. It has what these need of
// jobs and programs do not. Package jobs sets the functions when it is initialized. Types of
// package jobs appear as any, since package jobs imports this package.
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
	"github.com/pgfrontier/worker/store"
)

// Client holds the parts of a *jobs.Client.
type Client struct {
	DB     pgdriver.Pool
	Names  store.Names
	Tables tables.Jobs
	Queue  *queue.Queue
	Ends   *awaited.Ends
	Err    error // of its options
}

// Of returns the parts of a *jobs.Client, which must not be nil.
var Of func(client any) Client

// Job makes a job of arguments (a jobs.Args) and options (a []jobs.EnqueueOption).
var Job func(args, options any) (queue.NewJob, error)

// Encode returns v as JSON that PostgreSQL accepts.
var Encode func(v any) (json.RawMessage, error)

// Extension runs beside a worker. The worker calls Prepare before it registers. Then it calls Run
// in a goroutine, and waits for its end before Start returns.
type Extension interface {
	// Prepare returns an error if the database lacks something. Start returns the error.
	Prepare(ctx context.Context, conn *sql.Conn, w Worker) error
	// Run runs until ctx ends. ctx ends after the worker's last job was settled.
	Run(ctx context.Context)
	// Ended is called after a job of the worker has finished and its outcome is stored. Many
	// goroutines call it; it must not block.
	Ended(meta json.RawMessage)
}

// These are the codes of steps that only flows give.
const (
	CodeSkipped   = "SKIPPED"   // the handler has skipped the step
	CodeForgotten = "FORGOTTEN" // the step's job is in no table
	CodeNoList    = "NO_LIST"   // the result to spread is no list
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

// Code returns CodeSkipped.
func (Skipped) Code() string { return CodeSkipped }

// Worker is the view of its worker that an extension gets.
type Worker struct {
	Tables    tables.Jobs
	Retention time.Duration // 0: for ever
	Limit     time.Duration // bounds a statement

	On     func(ctx context.Context, f func(conn *sql.Conn) error) error // calls f with a connection of the worker's pool
	Wake   func()                                                        // makes the worker poll for jobs
	Failed func(task string, err error)                                  // reports an error of a task; nil errors are ignored

	RunEnded func(EndedRun) // reports a run that has ended
}

// EndedRun is a run of a flow that has ended.
type EndedRun struct {
	Run         int64
	Flow, State string
	Took        int64 // microseconds since its start
}

// ExtensionOption returns a jobs.Option that gives each worker an extension.
var ExtensionOption func(make func() Extension) any
