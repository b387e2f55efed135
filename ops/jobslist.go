package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// bulkOps are the operations on the jobs that a filter or a queue selects.
type bulkOps struct{ *jobsCore }

// Job is a job as stored in the tables.
type Job struct {
	ID          int64
	Kind        string
	Queue       string
	State       jobs.State
	Priority    int        // 1, the first, to 9
	RunAt       time.Time  // the zero Time: never, as it is infinity
	GoodUntil   *time.Time // nil: it does not expire
	Args        json.RawMessage
	Meta        json.RawMessage // nil: none
	UniqueKey   string          // of an unfinished job; empty: none
	CreatedAt   time.Time
	Attempt     int // number of runs
	Failures    int
	Resets      int // number of workers that died while they ran it
	MaxAttempts int // 0: its handler decides
	MaxResets   int
	Worker      uuid.UUID  // the worker that runs or has finished it; the zero UUID: none
	StartedAt   *time.Time // start of its current or last run; nil: it has not started
	CancelAt    *time.Time // when an operator or a program asked its run to end; nil: not asked
	FinishedAt  *time.Time // nil: it has not finished
	// AcknowledgedAt is when an operator acknowledged the failure; nil: not acknowledged.
	AcknowledgedAt *time.Time
	Code, Error    string // of its end, or of the latest run that did not finish it
	Result         json.RawMessage
}

// JobFilter selects jobs. The zero JobFilter selects all jobs.
type JobFilter struct {
	States []jobs.State // empty: all
	Kind   string       // empty: all
	Queue  string       // empty: all

	// After and Before bound the IDs: a job's ID is above After and below Before. 0 is no
	// bound. For the next page, set Before to the last ID of this page.
	After, Before int64
}

func (f JobFilter) empty() bool {
	return len(f.States) == 0 && f.Kind == "" && f.Queue == "" && f.After == 0 && f.Before == 0
}

func (f JobFilter) has(s jobs.State) bool { return len(f.States) == 0 || slices.Contains(f.States, s) }

func (f JobFilter) check(states ...jobs.State) (err error) {
	var all []error
	for _, s := range f.States {
		if !slices.Contains(states, s) {
			all = append(all, fmt.Errorf("%w: the state %s is not one of %q", ErrInvalid, errtext.Value(s), states))
		}
	}
	if f.Kind != "" {
		all = append(all, checkText("the kind", f.Kind, maxQueueName))
	}
	if f.Queue == AllQueues {
		all = append(all, fmt.Errorf("%w: no job is in queue %q: leave the queue empty for all", ErrInvalid, AllQueues))
	} else if f.Queue != "" {
		all = append(all, checkQueue(f.Queue))
	}
	if f.After < 0 || f.Before < 0 {
		all = append(all, fmt.Errorf("%w: After is %d and Before %d, IDs begin at 1", ErrInvalid, f.After, f.Before))
	}
	return errtext.Join(all...)
}

func checkLimit(limit int) error {
	if limit < 1 || limit > maxJobs {
		return fmt.Errorf("%w: limit is %d, allowed is 1 to %d", ErrInvalid, limit, maxJobs)
	}
	return nil
}

// where returns the conditions of the filter for state, or for all states if state is empty. The
// state is part of the text, since the predicates of indexes contain it.
func (f JobFilter) where(p *pgdriver.Parameters, state jobs.State) string {
	where := `true`
	if state != "" {
		where = `state = '` + string(state) + `'`
	}
	return where + pgdriver.And(p, `kind = %s`, "text", f.Kind) + pgdriver.And(p, `queue = %s`, "text", f.Queue) +
		pgdriver.And(p, `id > %s`, "bigint", f.After) + pgdriver.And(p, `id < %s`, "bigint", f.Before)
}

// order returns the ORDER BY. For running jobs, it keeps the planner from a scan in the order
// of IDs through all waiting jobs.
func order(state jobs.State) string {
	if state == jobs.StateRunning {
		return `id + 0 DESC`
	}
	return `id DESC`
}

const (
	listed     = `id, kind, queue, state, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, claimed_by, started_at, cancel_at`
	unfinished = listed + `, unique_key, NULL::timestamptz AS finished_at, NULL::text AS code, NULL::text AS error, NULL::jsonb AS result, NULL::timestamptz AS acknowledged_at`
	finished   = listed + `, NULL::text AS unique_key, finished_at, code, error, result, acknowledged_at`
)

// List lists finished and unfinished jobs, the newest first, from one snapshot. limit is 1 to
// 10,000. List reads little more than it returns. Exception: for a kind or a queue with few
// jobs, List scans all jobs that match the states and IDs.
func (o *bulkOps) List(ctx context.Context, f JobFilter, limit int) ([]Job, error) {
	invalid := errtext.Join(f.check(slices.Concat(unfinishedStates, finishedStates)...), checkLimit(limit))
	query, args := o.listSQL(f, limit)
	return read(ctx, &o.core, "list the jobs", invalid, scanJob, query, args...)
}

func (o *bulkOps) listSQL(f JobFilter, limit int) (query string, args []any) {
	var p pgdriver.Parameters
	most := p.Add("bigint", limit)
	part := func(columns, table string, state jobs.State) string {
		return `(SELECT ` + columns + ` FROM ` + table + ` WHERE ` + f.where(&p, state) + ` ORDER BY ` + order(state) + ` LIMIT ` + most + `)`
	}
	var parts []string
	if len(f.States) == 0 {
		parts = []string{part(unfinished, o.t.Jobs.SQL(), ""), part(finished, o.t.History.SQL(), "")}
	}
	for _, state := range slices.Compact(slices.Sorted(slices.Values(f.States))) {
		if slices.Contains(unfinishedStates, state) {
			parts = append(parts, part(unfinished, o.t.Jobs.SQL(), state))
		} else {
			parts = append(parts, part(finished, o.t.History.SQL(), state))
		}
	}
	return strings.NewReplacer("{parts}", strings.Join(parts, ` UNION ALL `), "{limit}", most).Replace(o.sql.list), p.Values
}

var scanJob = pgdriver.Columns(func(j *Job) []any {
	return []any{&j.ID, &j.Kind, &j.Queue, &j.State, &j.Priority, pgdriver.UTC(&j.RunAt), pgdriver.UTCOrNil(&j.GoodUntil), pgdriver.RawJSON(&j.Args), pgdriver.RawJSON(&j.Meta), &j.UniqueKey, pgdriver.UTC(&j.CreatedAt),
		&j.Attempt, &j.Failures, &j.Resets, &j.MaxAttempts, &j.MaxResets, &j.Worker, pgdriver.UTCOrNil(&j.StartedAt), pgdriver.UTCOrNil(&j.CancelAt), pgdriver.UTCOrNil(&j.FinishedAt),
		&j.Code, &j.Error, pgdriver.RawJSON(&j.Result), pgdriver.UTCOrNil(&j.AcknowledgedAt)}
})
