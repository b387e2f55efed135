package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/store"
)

// maxMany is the largest number of finished jobs that one transaction changes. Each job takes
// several statements.
const maxMany = 1_000

// CancelledJobs is the result of CancelAll.
type CancelledJobs struct {
	Cancelled []int64 // they did not run
	Asked     []int64 // their runs were asked to end
}

// CancelAll cancels up to limit unfinished jobs, as Cancel cancels one. Running jobs come
// first, then the newest. limit is 1 to 10,000. Jobs whose rows are locked are skipped, and so
// are runs that were asked to end before. To cancel all jobs of the filter, call CancelAll
// until it returns none. The filter must not be empty.
//
// All cancellations are one operation. The operation's detail has the filter and the IDs.
func (o *bulkOps) CancelAll(ctx context.Context, f JobFilter, limit int, by By) (all CancelledJobs, err error) {
	invalid := errtext.Join(f.check(unfinishedStates...), checkLimit(limit, maxJobs))
	if invalid == nil && f.empty() {
		invalid = fmt.Errorf("%w: the filter is empty, which is every job: name states, a kind, a queue or IDs", ErrInvalid)
	}
	err = o.changeJobs(ctx, onQueue(KindCancel, f.Queue, by), invalid, func(c jobsTx) (any, error) {
		all = CancelledJobs{[]int64{}, []int64{}} // in JSON, no null
		for _, state := range []jobs.State{jobs.StateRunning, jobs.StateAvailable} {
			left := limit - len(all.Asked) - len(all.Cancelled)
			if left == 0 || !f.has(state) {
				continue
			}
			ids, err := c.lockAll(ctx, f, state, left)
			if err == nil && len(ids) > 0 {
				_, err = c.cancel(ctx, state, ids)
			}
			if err != nil {
				return nil, err
			}
			if state == jobs.StateRunning {
				all.Asked = append(all.Asked, ids...)
			} else {
				all.Cancelled = append(all.Cancelled, ids...)
			}
		}
		return cancelAllDetail{f.States, f.Kind, f.After, f.Before, all.Cancelled, all.Asked}, nil
	})
	return orZero(all, err)
}

type cancelAllDetail struct {
	States    []jobs.State `json:"states,omitempty"`
	Kind      string       `json:"kind,omitempty"`
	After     int64        `json:"after,omitempty"`
	Before    int64        `json:"before,omitempty"`
	Cancelled []int64      `json:"cancelled"`
	Asked     []int64      `json:"asked_to_end"`
}

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
func (o *bulkOps) RetryAll(ctx context.Context, f JobFilter, limit int, by By) (all RetriedJobs, err error) {
	refused := `EXISTS (SELECT FROM ` + o.t.Operations.SQL() + ` AS p WHERE p.job_id = j.id AND p.detail->>'new_job' IS NOT NULL)
	OR EXISTS (SELECT FROM ` + runsOfSteps(o.t) + `)`
	as := []int64{}
	ids, err := o.changeMany(ctx, KindRetry, f, unsuccessfulStates, refused, limit, by, func(c jobsTx, id int64) (string, any, error) {
		d, err := c.reenqueue(ctx, KindRetry, id)
		if err == nil {
			as = append(as, d.NewJob)
		}
		return d.queue, d, err
	})
	return orZero(RetriedJobs{ids, as}, err)
}

// DiscardAll deletes up to limit finished jobs from the history, as Discard deletes one, the
// newest first. It returns their IDs. limit is 1 to 1,000. A filter without states selects
// failed jobs. DiscardAll skips steps of flows whose end the run has not recorded yet. To
// discard all jobs of the filter, call DiscardAll until it returns none.
//
// All deletions are one transaction, recorded as that of RetryAll.
func (o *bulkOps) DiscardAll(ctx context.Context, f JobFilter, limit int, by By) (ids []int64, err error) {
	awaited := `EXISTS (SELECT FROM ` + o.t.FlowSteps.SQL() + ` AS s WHERE s.job_id = j.id AND s.state = 'enqueued')`
	return o.changeMany(ctx, KindDiscard, f, finishedStates, awaited, limit, by, func(c jobsTx, id int64) (string, any, error) {
		d, err := c.discard(ctx, id)
		return d.queue, d, err
	})
}

// changeMany applies do to finished jobs, and records each change. refused is an SQL condition
// for the jobs j that do would refuse.
func (o *bulkOps) changeMany(ctx context.Context, kind Kind, f JobFilter, allowed []jobs.State, refused string, limit int, by By, do func(c jobsTx, id int64) (queue string, detail any, err error)) (ids []int64, err error) {
	invalid := errtext.Join(f.check(allowed...), checkLimit(limit, maxMany))
	if f.empty() {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: the filter is empty: name states, a kind, a queue or IDs", ErrInvalid))
	}
	if len(f.States) == 0 {
		f.States = []jobs.State{jobs.StateFailed}
	}
	err = o.changeJobs(ctx, onQueue(kind, f.Queue, by), invalid, func(c jobsTx) (any, error) {
		found, err := c.finishedAll(ctx, f, refused, limit)
		if err != nil {
			return nil, err
		}
		ids = []int64{} // [] in JSON, not null
		for _, id := range found {
			queue, detail, err := do(c, id)
			var state *StateError
			if errors.Is(err, errNoJob) || errors.As(err, &state) {
				continue // another transaction has changed the job
			}
			if err == nil {
				_, err = o.record(ctx, c.tx, Operation{Job: id, Queue: queue, Kind: kind, By: by}, detail)
			}
			if err != nil {
				return nil, fmt.Errorf("job %d: %w", id, err)
			}
			ids = append(ids, id)
		}
		return manyDetail{f.States, f.Kind, len(ids)}, nil
	})
	return orZero(ids, err)
}

type manyDetail struct {
	States []jobs.State `json:"states"`
	Kind   string       `json:"kind,omitempty"`
	Jobs   int          `json:"jobs"` // each has its own operation
}

// Acknowledged is the result of Acknowledge.
type Acknowledged struct {
	Jobs    int64     // number of jobs that it has marked
	Through time.Time // when the last of them failed; the zero Time: there were none
}

// Acknowledge records that an operator has seen the failed jobs of a queue. It acknowledges the
// jobs that failed at or before through. The zero Time acknowledges all failed jobs. pgfrontier
// status and doctor, and the overview of the console, then no longer report these jobs. They
// report the queue again when another of its jobs fails. The acknowledged jobs stay in the
// history: Queue.Failed counts them, List lists them, Retry and Discard accept them. An
// acknowledgement cannot be undone.
//
// Acknowledge marks only the jobs whose failure is committed at this moment. A failure that is
// committed later is reported, whatever its time. To acknowledge exactly the jobs that
// [Jobs.Preview] has shown, pass the returned Through in [Jobs.Confirmed]. Jobs that failed in
// between then remain unacknowledged. Jobs whose rows are locked at this moment are skipped.
//
// All marks are one operation. The operation's detail has the number of jobs, the time of the
// last failure, and a digest of the IDs. With the digest, Confirmed finds any difference from
// a Preview.
func (o *bulkOps) Acknowledge(ctx context.Context, queue string, through time.Time, by By) (did Acknowledged, err error) {
	invalid := checkQueue(queue)
	if invalid == nil && queue == AllQueues {
		invalid = fmt.Errorf("%w: no job is in queue %q: acknowledge each queue by its name", ErrInvalid, AllQueues)
	}
	if !through.IsZero() && (through.Before(store.EarliestTime) || through.After(store.LatestTime)) {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: through is %v, allowed is %v to %v, or the zero Time", ErrInvalid, through, store.EarliestTime, store.LatestTime))
	}
	err = o.changeJobs(ctx, onQueue(KindAcknowledge, queue, by), invalid, func(c jobsTx) (any, error) {
		bound := "infinity"
		if !through.IsZero() {
			bound = through.UTC().Format(time.RFC3339Nano)
		}
		var d acknowledgeDetail
		if err := c.tx.QueryRowContext(ctx, o.sql.acknowledge, queue, bound).Scan(&d.Jobs, pgdriver.UTCOrNil(&d.Through), &d.Digest); err != nil {
			return nil, fmt.Errorf("mark the failed jobs: %w", err)
		}
		did = Acknowledged{Jobs: d.Jobs}
		if d.Through != nil {
			did.Through = *d.Through
		}
		return d, nil
	})
	return orZero(did, err)
}

type acknowledgeDetail struct {
	Jobs    int64      `json:"jobs"`
	Through *time.Time `json:"through"` // null: no failed jobs, or the time is infinity
	Digest  string     `json:"digest"`  // SHA-256 of their IDs
}
