package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

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

// Settler ends runs.
type Settler struct{ sql settleSQL }

type settleSQL struct{ complete, completeOne, settle, verdict string }

// Complete completes jobs without a result and without a log. It returns the ids of the completed
// jobs. The other jobs were locked, or ran under another claim: see [Queue.Judge]. Within a
// transaction, the jobs are complete when it commits. In a queue of retention 0, most of the jobs
// get no row in the history, and Judge returns Gone for their runs.
func (q *Settler) Complete(ctx context.Context, on store.Querier, runs []Run) (completed []int64, err error) {
	if len(runs) == 1 {
		return q.completeOne(ctx, on, runs[0])
	}
	ids, claims := Arrays(runs)
	return read(ctx, on, "complete", scanID, q.sql.complete, ids, claims)
}

func (q *Settler) completeOne(ctx context.Context, on store.Querier, r Run) (completed []int64, err error) {
	result, err := on.ExecContext(ctx, q.sql.completeOne, r.ID, r.Claim)
	var n int64
	if err == nil {
		n, err = result.RowsAffected()
	}
	if err != nil {
		return nil, fmt.Errorf("jobs: complete: %w", err)
	}
	return []int64{r.ID}[:n], nil
}

// Settle ends runs, and returns the jobs with their states. The other jobs were locked, or ran
// under another claim: see [Queue.Judge].
func (q *Settler) Settle(ctx context.Context, on store.Querier, ends []End) ([]Settled, error) {
	ends = slices.Clone(ends)
	for i := range ends {
		ends[i].Code, ends[i].Error = printable(ends[i].Code), printable(ends[i].Error)
	}
	given, err := list(ends)
	if err != nil {
		return nil, fmt.Errorf("jobs: settle: %w", err)
	}
	return read(ctx, on, "settle", scanSettled, q.sql.settle, given)
}

var scanSettled = pgdriver.Columns(func(s *Settled) []any { return []any{&s.ID, &s.State} })

// printable replaces NUL characters, which PostgreSQL cannot store.
func printable(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// Judge returns the outcomes of those runs that were settled before. Either the answer was lost, or
// the handler itself has committed the end of its job. A run with state Running is not settled yet.
// The job of a run with state Gone is in no table: [Queue.Complete] may have completed it. The
// missing runs were taken away from the worker, and their results do not count.
func (q *Settler) Judge(ctx context.Context, on store.Querier, runs []Run) (before []Settled, err error) {
	ids, claims := Arrays(runs)
	return read(ctx, on, "read the outcomes of jobs", scanSettled, q.sql.verdict, ids, claims)
}
