package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

// jobOps are the operations on one job.
type jobOps struct{ *jobsCore }

// Retry runs a job again, and returns the ID under which the job runs.
//
// A job that waits for its first or its next attempt becomes due now. It keeps its ID and its
// failed attempts.
//
// A job that failed, expired, was cancelled or was skipped is copied. The copy has a new ID,
// and is due now. The new job has the same kind, arguments, queue, priority, meta and limits.
// Its attempts are counted from 0. It has no unique key, even if the old job had one, so
// neither job excludes another. GoodUntil is kept if it lies ahead. The old job stays in the
// history. The operation's detail has the new ID; Operations finds the operation by both IDs.
//
// Retry refuses jobs whose effects would happen twice. It refuses a completed job with a
// [StateError], and so a job that was retried before. It also refuses the finished job of a step,
// since the flow's run would not notice the new job. Use RetryFlowRun instead. Rerun refuses none of
// these.
func (o *jobOps) Retry(ctx context.Context, id int64, by By) (as int64, err error) {
	return o.retry(ctx, KindRetry, id, by)
}

// Rerun is Retry without the refusals. It accepts jobs that have completed, were retried
// before, or are steps of a flow. Their effects may happen twice. A run of a flow does not
// notice the new job.
func (o *jobOps) Rerun(ctx context.Context, id int64, by By) (as int64, err error) {
	return o.retry(ctx, KindRerun, id, by)
}

func (o *jobOps) retry(ctx context.Context, kind Kind, id int64, by By) (as int64, err error) {
	v := onJob(kind, id, by)
	err = o.changeJobs(ctx, v, checkID("job", id), func(c jobsTx) (any, error) {
		j, found, err := c.lock(ctx, id)
		if err != nil {
			return nil, err
		}
		if found {
			v.Queue, as = j.queue, id
			return makeDueDetail{j, j.runAt}, c.makeDue(ctx, id, j)
		}
		d, err := c.reenqueue(ctx, kind, id)
		v.Queue, as = d.queue, d.NewJob
		return d, err
	})
	return orZero(as, err)
}

// Cancel cancels a job. A job that does not run is jobs.StateCancelled at once. If the job runs,
// Cancel asks the run to end: its context is cancelled. The job is then jobs.StateCancelled, unless
// its handler returns nil. Cancel returns the job's state after the call. It refuses a finished
// job, and a job whose run was asked before, with a [StateError].
func (o *jobOps) Cancel(ctx context.Context, id int64, by By) (now jobs.State, err error) {
	v := onJob(KindCancel, id, by)
	err = o.changeJobs(ctx, v, checkID("job", id), func(c jobsTx) (any, error) {
		j, found, err := c.lock(ctx, id)
		if err != nil {
			return nil, err
		}
		if !found {
			f, err := c.finished(ctx, id)
			if err != nil {
				return nil, err
			}
			return nil, &StateError{f.State, fmt.Sprintf("it finished at %s, and only an unfinished job can be cancelled", f.FinishedAt.Format(time.RFC3339))}
		}
		if j.asked.Valid {
			return nil, &StateError{j.State, fmt.Sprintf("it was asked to end at %s: wait until its handler returns, which a stop of its worker hastens", j.asked.Time.UTC().Format(time.RFC3339))}
		}
		v.Queue = j.queue
		now, err = c.cancel(ctx, j.State, []int64{id})
		return j, err
	})
	return orZero(now, err)
}

// Discard deletes a finished job from the history, with its attempts and its log. The
// operation's detail keeps the job's kind, state, code and error, but not its arguments or
// result. Discard refuses an unfinished job with a [StateError]: Cancel it first. It also
// refuses a step whose end its flow's run has not recorded yet, since the run would fail.
func (o *jobOps) Discard(ctx context.Context, id int64, by By) error {
	v := onJob(KindDiscard, id, by)
	return o.changeJobs(ctx, v, checkID("job", id), func(c jobsTx) (any, error) {
		j, found, err := c.lock(ctx, id)
		if err != nil {
			return nil, err
		}
		if found {
			return nil, &StateError{j.State, "only a finished job can be discarded: Cancel it first"}
		}
		d, err := c.discard(ctx, id)
		v.Queue = d.queue
		return d, err
	})
}

// maxAttempts is the largest result of Attempts. A job that is snoozed repeatedly has any
// number of attempts.
const maxAttempts = 1_000

// Attempts lists the runs of a job that did not finish it, in order. It returns the latest
// 1,000 at most, and none for a job that does not exist.
func (o *jobOps) Attempts(ctx context.Context, id int64) ([]jobs.Attempt, error) {
	all, err := read(ctx, &o.core, fmt.Sprintf("list the attempts of job %d", id), nil, pgdriver.Columns(func(a *jobs.Attempt) []any {
		return []any{&a.Number, &a.Worker, pgdriver.UTCOrNil(&a.StartedAt), pgdriver.UTC(&a.EndedAt), &a.Outcome, &a.Code, &a.Error}
	}), `
SELECT attempt, coalesce(worker_id::text, ''), `+pgdriver.Time(`started_at`)+`, `+pgdriver.Time(`ended_at`)+`, outcome, coalesce(code, ''), coalesce(error, '')
FROM `+o.t.Attempts.SQL()+` WHERE job_id = $1::bigint ORDER BY attempt DESC LIMIT $2::bigint`, id, maxAttempts)
	slices.Reverse(all)
	return all, err
}
