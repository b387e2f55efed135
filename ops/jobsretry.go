package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

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
func (o *Jobs) Retry(ctx context.Context, id int64, by By) (as int64, err error) {
	return o.retry(ctx, KindRetry, id, by)
}

// Rerun is Retry without the refusals. It accepts jobs that have completed, were retried
// before, or are steps of a flow. Their effects may happen twice. A run of a flow does not
// notice the new job.
func (o *Jobs) Rerun(ctx context.Context, id int64, by By) (as int64, err error) {
	return o.retry(ctx, KindRerun, id, by)
}

func (o *Jobs) retry(ctx context.Context, kind Kind, id int64, by By) (as int64, err error) {
	v := onJob(kind, id, by)
	err = o.changeJobs(ctx, v, checkJob(id), func(tx *sql.Tx) (any, error) {
		j, found, err := o.lockJob(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		if found {
			v.Queue, as = j.queue, id
			return makeDueDetail{j, j.runAt}, o.makeDue(ctx, tx, id, j)
		}
		d, err := o.reenqueue(ctx, tx, kind, id)
		v.Queue, as = d.queue, d.NewJob
		return d, err
	})
	if err != nil {
		return 0, err
	}
	return as, nil
}

// reenqueue copies a finished job to a new job.
func (o *Jobs) reenqueue(ctx context.Context, tx *sql.Tx, kind Kind, id int64) (d jobRetryDetail, err error) {
	if d.finishedJob, err = o.finished(ctx, tx, id); err != nil {
		return d, err
	}
	before, err := o.retried(ctx, tx, id)
	if err == nil {
		d.Run, err = o.runOf(ctx, tx, id)
	}
	if err == nil && kind != KindRerun {
		err = mayRetry(d.finishedJob, before, d.Run)
	}
	if err != nil {
		return d, err
	}
	d.Before = before.as
	if d.NewJob, err = o.queue.Reenqueue(ctx, tx, id); noRows(err) {
		err = errNoJob // another transaction has removed it
	}
	return d, err
}

// makeDue makes a waiting job due now.
func (o *Jobs) makeDue(ctx context.Context, tx *sql.Tx, id int64, j lockedJob) error {
	switch {
	case j.State == jobs.StateRunning:
		return &StateError{j.State, "let its run end, or Cancel it, and retry it then"}
	case j.due:
		return &StateError{j.State, "it is due already, and runs once a worker that has a handler for its kind is free; its queue may be paused or capped (Queues shows that)"}
	}
	return o.queue.MakeDue(ctx, tx, id)
}

// retry is the latest retry of a job. The zero retry means that the job was not retried.
type retry struct {
	as int64
	at time.Time
	by string
}

// retried returns the latest retry of a job. Concurrent retries of one job wait for each other,
// by an advisory lock.
func (o *Jobs) retried(ctx context.Context, tx *sql.Tx, id int64) (r retry, err error) {
	if _, err := exec(ctx, tx, "wait for others who retry it", `SELECT pg_advisory_xact_lock(hashtextextended($1::text, $2::bigint))`, "retry of "+o.t.Jobs.String(), id); err != nil {
		return r, err
	}
	err = tx.QueryRowContext(ctx, `
SELECT (detail->>'new_job')::bigint, `+pgdriver.Time(`created_at`)+`, operator FROM `+o.t.Operations.SQL()+`
WHERE job_id = $1::bigint AND detail->>'new_job' IS NOT NULL ORDER BY id DESC LIMIT 1`, id).Scan(&r.as, &r.at, &r.by)
	if err != nil && !noRows(err) {
		return r, fmt.Errorf("read whether it was retried: %w", err)
	}
	return r, nil
}

// runOf returns the run of a flow whose step a finished job is. It is 0 if the job is no step,
// or if its run was removed. The upper bits of a step's id are the run's id.
func (o *Jobs) runOf(ctx context.Context, tx *sql.Tx, id int64) (run int64, err error) {
	err = tx.QueryRowContext(ctx, `
SELECT r.id FROM `+o.t.History.SQL()+` AS j CROSS JOIN LATERAL (SELECT r.id FROM `+o.runsOfSteps()+`) AS r WHERE j.id = $1::bigint`, id).Scan(&run)
	if err != nil && !noRows(err) {
		return 0, fmt.Errorf("read its run of a flow: %w", err)
	}
	return run, nil
}

// runsOfSteps is a FROM item for the runs r that have job j as a step. The metadata of a user
// may hold any value under the key flow_step.
func (o *Jobs) runsOfSteps() string {
	return o.t.FlowRuns.SQL() + ` AS r JOIN ` + o.t.FlowSteps.SQL() + ` AS s ON r.id = s.id >> 30
	AND s.id = CASE WHEN j.meta->>'flow_step' ~ '^[1-9][0-9]{0,18}$' THEN
		CASE WHEN (j.meta->>'flow_step')::numeric <= 9223372036854775807 THEN (j.meta->>'flow_step')::bigint END END`
}

// mayRetry refuses a job that has completed, was retried, or is a step of a flow.
func mayRetry(f finishedJob, before retry, run int64) error {
	switch {
	case run != 0:
		return &StateError{f.State, fmt.Sprintf("it is a step of run %d of a flow, which would not notice another job: once the run has ended, RetryFlowRun runs it again from the steps that failed, or that you name; Rerun runs this job again, with its effects", run)}
	case f.State == jobs.StateCompleted:
		return &StateError{f.State, fmt.Sprintf("it finished at %s; Rerun runs it again, with its effects", f.FinishedAt.Format(time.RFC3339))}
	case before.as != 0:
		return &StateError{f.State, fmt.Sprintf("it was retried before: as job %d, at %s by %s: see that job; Rerun runs this one again", before.as, before.at.UTC().Format(time.RFC3339), errtext.Value(before.by))}
	}
	return nil
}

type makeDueDetail struct {
	lockedJob
	Due string `json:"was_due"`
}

type jobRetryDetail struct {
	finishedJob
	Before int64 `json:"retried_before_as,omitempty"` // the latest job that was copied from it
	Run    int64 `json:"flow_run,omitempty"`          // the run whose step it is; the run does not notice the new job
	NewJob int64 `json:"new_job"`
}

// Discard deletes a finished job from the history, with its attempts and its log. The
// operation's detail keeps the job's kind, state, code and error, but not its arguments or
// result. Discard refuses an unfinished job with a [StateError]: Cancel it first. It also
// refuses a step whose end its flow's run has not recorded yet, since the run would fail.
func (o *Jobs) Discard(ctx context.Context, id int64, by By) error {
	v := onJob(KindDiscard, id, by)
	return o.changeJobs(ctx, v, checkJob(id), func(tx *sql.Tx) (any, error) {
		j, found, err := o.lockJob(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		if found {
			return nil, &StateError{j.State, "only a finished job can be discarded: Cancel it first"}
		}
		d, err := o.discard(ctx, tx, id)
		v.Queue = d.queue
		return d, err
	})
}

// discard deletes a finished job.
func (o *Jobs) discard(ctx context.Context, tx *sql.Tx, id int64) (d jobDiscardDetail, err error) {
	if d.finishedJob, err = o.finished(ctx, tx, id); err != nil {
		return d, err
	}
	awaited, err := o.awaitedByFlow(ctx, tx, id)
	if err != nil {
		return d, err
	}
	if awaited {
		return d, &StateError{d.State, "it is a step of a flow, whose run has not recorded its end yet: try again in some seconds, and see that a worker with flow.Advance runs"}
	}
	for _, s := range []struct {
		what, query string
		rows        *int64
	}{
		{"delete its attempts", `DELETE FROM ` + o.t.Attempts.SQL() + ` WHERE job_id = $1::bigint`, &d.Attempts},
		{"delete its logs", `DELETE FROM ` + o.t.Logs.SQL() + ` WHERE job_id = $1::bigint`, &d.Logs},
		{"delete it", `DELETE FROM ` + o.t.History.SQL() + ` WHERE id = $1::bigint`, &d.rows},
	} {
		if *s.rows, err = exec(ctx, tx, s.what, s.query, id); err != nil {
			return d, err
		}
	}
	if d.rows == 0 {
		return d, errNoJob // another transaction has discarded it
	}
	return d, nil
}

// awaitedByFlow reports whether the job is a step of a flow whose end the run has not recorded yet.
func (o *Jobs) awaitedByFlow(ctx context.Context, tx *sql.Tx, id int64) (awaited bool, err error) {
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+o.t.FlowSteps.SQL()+` WHERE job_id = $1::bigint AND state = 'enqueued')`, id).Scan(&awaited)
	if err != nil {
		return false, fmt.Errorf("read whether a run of a flow waits for it: %w", err)
	}
	return awaited, nil
}

type jobDiscardDetail struct {
	finishedJob
	Attempts int64 `json:"attempts_deleted"`
	Logs     int64 `json:"logs_deleted"`
	rows     int64
}
