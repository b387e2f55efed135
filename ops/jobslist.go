package ops

import (
	"context"
	"encoding/json"
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
	RunAt       time.Time  // the zero Time: infinity
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

const (
	listed     = `id, kind, queue, state, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets, claimed_by, started_at, cancel_at`
	unfinished = listed + `, unique_key, NULL::timestamptz AS finished_at, NULL::text AS code, NULL::text AS error, NULL::jsonb AS result, NULL::timestamptz AS acknowledged_at`
	finished   = listed + `, NULL::text AS unique_key, finished_at, code, error, result, acknowledged_at`
)

// List lists finished and unfinished jobs, the newest first, from one snapshot. limit is 1 to
// 10,000. List reads little more than it returns. Exception: for a kind or a queue with few
// jobs, List scans all jobs that match the states and IDs.
func (o *bulkOps) List(ctx context.Context, f JobFilter, limit int) ([]Job, error) {
	invalid := errtext.Join(f.check(slices.Concat(unfinishedStates, finishedStates)...), checkLimit(limit, maxJobs))
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
