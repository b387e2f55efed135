package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// maxMany is the largest number of finished jobs that one transaction changes. Each job takes
// several statements.
const maxMany = 1_000

// RetriedJobs is the result of RetryAll.
type RetriedJobs struct {
	Jobs []int64 // that were retried, the newest first
	As   []int64 // the new jobs, in the same order
}

// RetryAll retries up to limit finished jobs, as Retry retries one, the newest first. limit is
// 1 to 1,000. The filter may select jobs that failed, expired, were cancelled or skipped. A
// filter without states selects failed jobs. RetryAll skips the jobs that Retry refuses: jobs
// that were retried before, and steps of flows. To retry all jobs of the filter, call RetryAll
// until it returns none.
//
// All retries are one transaction. Each job has its own operation, as after Retry. One more
// operation records the states, the kind, the queue, and the number of jobs.
func (o *Jobs) RetryAll(ctx context.Context, f JobFilter, limit int, by By) (all RetriedJobs, err error) {
	refused := `EXISTS (SELECT FROM ` + o.t.Operations.SQL() + ` AS p WHERE p.job_id = j.id AND p.detail->>'new_job' IS NOT NULL)
	OR EXISTS (SELECT FROM ` + o.runsOfSteps() + `)`
	as := []int64{}
	ids, err := o.changeMany(ctx, KindRetry, f, unsuccessfulStates, refused, limit, by, func(tx *sql.Tx, id int64) (string, any, error) {
		d, err := o.reenqueue(ctx, tx, KindRetry, id)
		if err == nil {
			as = append(as, d.NewJob)
		}
		return d.queue, d, err
	})
	if err != nil {
		return all, err
	}
	return RetriedJobs{ids, as}, nil
}

// DiscardAll deletes up to limit finished jobs from the history, as Discard deletes one, the
// newest first. It returns their IDs. limit is 1 to 1,000. A filter without states selects
// failed jobs. DiscardAll skips steps of flows whose end the run has not recorded yet. To
// discard all jobs of the filter, call DiscardAll until it returns none.
//
// All deletions are one transaction, recorded as that of RetryAll.
func (o *Jobs) DiscardAll(ctx context.Context, f JobFilter, limit int, by By) (ids []int64, err error) {
	awaited := `EXISTS (SELECT FROM ` + o.t.FlowSteps.SQL() + ` AS s WHERE s.job_id = j.id AND s.state = 'enqueued')`
	return o.changeMany(ctx, KindDiscard, f, finishedStates, awaited, limit, by, func(tx *sql.Tx, id int64) (string, any, error) {
		d, err := o.discard(ctx, tx, id)
		return d.queue, d, err
	})
}

// changeMany applies do to finished jobs, and records each change. refused is an SQL condition
// for the jobs j that do would refuse.
func (o *Jobs) changeMany(ctx context.Context, kind Kind, f JobFilter, allowed []jobs.State, refused string, limit int, by By, do func(tx *sql.Tx, id int64) (queue string, detail any, err error)) (ids []int64, err error) {
	invalid := f.check(allowed...)
	switch {
	case limit < 1 || limit > maxMany:
		invalid = errtext.Join(invalid, fmt.Errorf("%w: limit is %d, allowed is 1 to %d", ErrInvalid, limit, maxMany))
	case f.empty():
		invalid = errtext.Join(invalid, fmt.Errorf("%w: the filter is empty: name states, a kind, a queue or IDs", ErrInvalid))
	}
	if len(f.States) == 0 {
		f.States = []jobs.State{jobs.StateFailed}
	}
	err = o.changeJobs(ctx, onQueue(kind, f.Queue, by), invalid, func(tx *sql.Tx) (any, error) {
		found, err := o.finishedJobs(ctx, tx, f, refused, limit)
		if err != nil {
			return nil, err
		}
		ids = []int64{} // [] in JSON, not null
		for _, id := range found {
			queue, detail, err := do(tx, id)
			var state *StateError
			if errors.Is(err, errNoJob) || errors.As(err, &state) {
				continue // another transaction has changed the job
			}
			if err == nil {
				_, err = o.record(ctx, tx, Operation{Job: id, Queue: queue, Kind: kind, By: by}, detail)
			}
			if err != nil {
				return nil, fmt.Errorf("job %d: %w", id, err)
			}
			ids = append(ids, id)
		}
		return manyDetail{f.States, f.Kind, len(ids)}, nil
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

type manyDetail struct {
	States []jobs.State `json:"states"`
	Kind   string       `json:"kind,omitempty"`
	Jobs   int          `json:"jobs"` // each has its own operation
}

// finishedJobs returns the newest jobs of the history that match the filter and not refused.
func (o *Jobs) finishedJobs(ctx context.Context, tx *sql.Tx, f JobFilter, refused string, limit int) ([]int64, error) {
	var p pgdriver.Parameters
	most := p.Add("bigint", limit)
	var parts []string
	for _, state := range slices.Compact(slices.Sorted(slices.Values(f.States))) {
		parts = append(parts, `(SELECT j.id FROM `+o.t.History.SQL()+` AS j WHERE `+f.where(&p, state)+`
	AND NOT (`+refused+`) ORDER BY j.id DESC LIMIT `+most+`)`)
	}
	ids, err := pgdriver.QueryAll(ctx, tx, pgdriver.Value[int64],
		`SELECT id FROM (`+strings.Join(parts, ` UNION ALL `)+`) AS j ORDER BY id DESC LIMIT `+most, p.Values...)
	if err != nil {
		return nil, fmt.Errorf("select the jobs: %w", err)
	}
	return ids, nil
}
