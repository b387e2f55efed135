package queue

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Queue is the tables of jobs. Its statements run on connections, or in
// transactions, of the callers.
type Queue struct{ sql statements }

// New returns a Queue. channel, an identifier, is where those who wait for new
// jobs are told of them.
func New(t tables.Jobs, channel string) *Queue { return &Queue{newStatements(t, channel)} }

// Run names a run of a job. It is the fence: only who knows it can end the run.
type Run struct {
	ID    int64 `json:"id"`
	Claim int64 `json:"claim"`
}

// list is how lists travel: as text, which every driver and every way to execute a
// statement can do.
func list[T any](all []T) (string, error) {
	if all == nil {
		all = []T{}
	}
	b, err := json.Marshal(all)
	return string(b), err
}

// New is a job to be enqueued. What is zero is as the table has it.
type NewJob struct {
	Kind        string          `json:"kind"`
	Queue       string          `json:"queue,omitempty"`
	Priority    int             `json:"priority,omitempty"` // 1, the first, to 9
	At          *time.Time      `json:"at,omitempty"`       // nil: Delay from now
	Delay       int64           `json:"delay,omitempty"`    // microseconds, by the server's clock
	GoodUntil   *time.Time      `json:"good_until,omitempty"`
	Args        json.RawMessage `json:"args,omitempty"`
	Meta        json.RawMessage `json:"meta,omitempty"`
	MaxAttempts int             `json:"max_attempts,omitempty"`
	MaxResets   *int            `json:"max_resets,omitempty"`
	UniqueKey   string          `json:"unique_key,omitempty"`  // no two unfinished jobs have the same
	UntilStart  bool            `json:"until_start,omitempty"` // it is free again once the job runs
}

// Enqueue inserts jobs and returns their ids, in order, 0 for one whose unique key
// is taken. Who waits for jobs of their queues is told at the COMMIT.
func (q *Queue) Enqueue(ctx context.Context, on store.Querier, jobs []NewJob) (ids []int64, err error) {
	given, err := list(jobs)
	if err != nil {
		return nil, fmt.Errorf("jobs: enqueue: %w", err)
	}
	ids = make([]int64, len(jobs))
	type placed struct{ n, id int64 }
	all, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (p placed, err error) {
		return p, r.Scan(&p.n, &p.id)
	}, q.sql.enqueue, given)
	if err != nil {
		return nil, fmt.Errorf("jobs: enqueue: %w", err)
	}
	for _, p := range all {
		ids[p.n-1] = p.id
	}
	return ids, nil
}

// Lane is a priority of a queue, and behind which job a claim begins to look.
type Lane struct {
	Priority int        `json:"p"`
	At       *time.Time `json:"at,omitempty"` // of a job; nil: from the first
	ID       int64      `json:"id"`
}

// Demand is what a claim asks for.
type Demand struct {
	Worker uuid.UUID
	Claim  int64 // random
	Queue  string
	Lanes  []Lane   // in the order to try
	Kinds  []string // that the worker has handlers for
	Limit  int      // jobs at most
	Start  int      // of them these, the first ones, start now
}

// Job is a job that a worker has claimed.
type Job struct {
	Run
	Kind     string
	Priority int
	RunAt    time.Time
	Args     json.RawMessage
	Meta     json.RawMessage // nil: none
	Attempt  int             // from 1
	Failures int             // so far
	Resets   int             // workers lost while it ran
	Started  bool
	Cancel   bool // somebody wants it to end
}

// Claim takes jobs that are due. A worker without a row in the table of workers
// gets none, and nobody gets one of a queue that is paused. Jobs that others hold
// are passed over.
func (q *Queue) Claim(ctx context.Context, on store.Querier, d Demand) ([]Job, error) {
	lanes, err := list(d.Lanes)
	if err != nil {
		return nil, fmt.Errorf("jobs: claim: %w", err)
	}
	kinds, err := list(d.Kinds)
	if err != nil {
		return nil, fmt.Errorf("jobs: claim: %w", err)
	}
	jobs, err := pgdriver.QueryAll(ctx, on, scanJob, q.sql.claim, d.Worker.String(), d.Claim, d.Queue, lanes, kinds, d.Limit, d.Start)
	if err != nil {
		return nil, fmt.Errorf("jobs: claim jobs of queue %q: %w", d.Queue, err)
	}
	return jobs, nil
}

// Look returns the jobs of a queue that run for a worker, as the database has it:
// also those of a claim whose answer was lost.
func (q *Queue) Look(ctx context.Context, on store.Querier, worker uuid.UUID, queue string) ([]Job, error) {
	jobs, err := pgdriver.QueryAll(ctx, on, scanJob, q.sql.look, worker.String(), queue)
	if err != nil {
		return nil, fmt.Errorf("jobs: look at the jobs of queue %q: %w", queue, err)
	}
	return jobs, nil
}

func scanJob(r *sql.Rows) (j Job, err error) {
	var args, meta []byte
	err = r.Scan(&j.ID, &j.Claim, &j.Kind, &j.Priority, &j.RunAt, &args, &meta, &j.Attempt, &j.Failures, &j.Resets, &j.Started, &j.Cancel)
	j.Args, j.Meta = args, meta
	return j, err
}

// Start starts jobs that were claimed ahead, and returns those that may run. One
// that was cancelled, or whose time is over, may not, nor one that was lost.
func (q *Queue) Start(ctx context.Context, on store.Querier, runs []Run) (started []int64, err error) {
	started, err = q.ids(ctx, on, q.sql.start, runs)
	if err != nil {
		return nil, fmt.Errorf("jobs: start: %w", err)
	}
	return started, nil
}

// Complete completes jobs without a result, and returns those that it has
// completed. It may be part of a transaction: then the jobs are complete if that
// commits.
func (q *Queue) Complete(ctx context.Context, on store.Querier, runs []Run) (completed []int64, err error) {
	completed, err = q.ids(ctx, on, q.sql.complete, runs)
	if err != nil {
		return nil, fmt.Errorf("jobs: complete: %w", err)
	}
	return completed, nil
}

func (q *Queue) ids(ctx context.Context, on store.Querier, statement string, runs []Run) ([]int64, error) {
	given, err := list(runs)
	if err != nil {
		return nil, err
	}
	return pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (id int64, err error) { return id, r.Scan(&id) }, statement, given)
}
