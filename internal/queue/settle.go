package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// State is the state of a job after a run.
type State string

const (
	Running   State = "running"   // unchanged, since another transaction has locked its row
	Gone      State = "gone"      // of [Queue.Judge]: no table has the job
	Available State = "available" // to run again
	Completed State = "completed"
	Failed    State = "failed"
	Cancelled State = "cancelled"
	Expired   State = "expired"
)

// Outcome is how a run ended that did not finish its job.
type Outcome string

const (
	Erred    Outcome = "error"
	Snoozed  Outcome = "snoozed"
	Released Outcome = "released"
)

// End is the end of a run.
type End struct {
	Run
	To      State           `json:"to"`              // Available: unless it was cancelled, or has failed too often
	Delay   *int64          `json:"delay,omitempty"` // microseconds until it runs again; nil: when it was due
	Counts  bool            `json:"counts"`          // the run counts as a failure
	Most    int             `json:"most,omitempty"`  // failures after which the job has failed, unless the job sets its own; 0: 15
	Resets  bool            `json:"resets"`          // the run counts as a reset
	Outcome Outcome         `json:"outcome,omitempty"`
	Code    string          `json:"code,omitempty"`
	Error   string          `json:"error,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
}

// Settled is the state of a job after Settle.
type Settled struct {
	ID    int64
	State State
}

// Complete completes jobs without a result and without a log. It returns the ids of the completed
// jobs. The other jobs were locked, or ran under another claim: see [Queue.Judge]. Within a
// transaction, the jobs are complete when it commits. In a queue of retention 0, most of the jobs
// get no row in the history, and Judge returns Gone for their runs.
func (q *Queue) Complete(ctx context.Context, on store.Querier, runs []Run) (completed []int64, err error) {
	if len(runs) == 1 {
		completed, err = q.completeOne(ctx, on, runs[0])
	} else {
		completed, err = q.ids(ctx, on, q.sql.complete, runs)
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: complete: %w", err)
	}
	return completed, nil
}

func (q *Queue) completeOne(ctx context.Context, on store.Querier, r Run) (completed []int64, err error) {
	result, err := on.ExecContext(ctx, q.sql.completeOne, r.ID, r.Claim)
	if err != nil {
		return nil, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return nil, err
	}
	return []int64{r.ID}, nil
}

// Settle ends runs, and returns the jobs with their states. The other jobs were locked, or ran
// under another claim: see [Queue.Judge].
func (q *Queue) Settle(ctx context.Context, on store.Querier, ends []End) ([]Settled, error) {
	ends = slices.Clone(ends)
	for i := range ends {
		ends[i].Code, ends[i].Error = printable(ends[i].Code), printable(ends[i].Error)
	}
	given, err := list(ends)
	if err != nil {
		return nil, fmt.Errorf("jobs: settle: %w", err)
	}
	settled, err := pgdriver.QueryAll(ctx, on, scanSettled, q.sql.settle, given)
	if err != nil {
		return nil, fmt.Errorf("jobs: settle: %w", err)
	}
	return settled, nil
}

var scanSettled = pgdriver.Columns(func(s *Settled) []any { return []any{&s.ID, &s.State} })

// printable replaces NUL characters, which PostgreSQL cannot store.
func printable(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// Judge returns the outcomes of those runs that were settled before. Either the answer was lost, or
// the handler itself has committed the end of its job. A run with state Running is not settled yet.
// The job of a run with state Gone is in no table: [Queue.Complete] may have completed it. The
// missing runs were taken away from the worker, and their results do not count.
func (q *Queue) Judge(ctx context.Context, on store.Querier, runs []Run) (before []Settled, err error) {
	ids, claims := Arrays(runs)
	before, err = pgdriver.QueryAll(ctx, on, scanSettled, q.sql.verdict, ids, claims)
	if err != nil {
		return nil, fmt.Errorf("jobs: read the outcomes of jobs: %w", err)
	}
	return before, nil
}

// ExplainDuplicate adds the remedy to the error of a job that cannot end since the history already has its id.
func (q *Queue) ExplainDuplicate(id int64, err error) error {
	if pgdriver.SQLState(err) != pgdriver.UniqueViolation {
		return err
	}
	return fmt.Errorf("%s already has a job with this id; other jobs are not affected: raise the sequence of %s (pgfrontier sequences --raise), and delete the earlier job or give it another id (UPDATE %s SET id = -id WHERE id = %d): %w",
		q.tables.History, q.tables.Jobs, q.tables.History.SQL(), id, errtext.Of(err))
}

// Cancel ends a job that does not run, and asks a running job to end. It returns the state of
// the job before, or "" if there is no unfinished job with the id.
func (q *Queue) Cancel(ctx context.Context, on store.Querier, id int64) (was State, err error) {
	err = on.QueryRowContext(ctx, q.sql.cancel, id).Scan(&was)
	if err != nil {
		return "", fmt.Errorf("jobs: cancel job %d: %w", id, q.ExplainDuplicate(id, err))
	}
	return was, nil
}
