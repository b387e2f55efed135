package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/jobs"
)

// reenqueue copies a finished job to a new job.
func (c jobsTx) reenqueue(ctx context.Context, kind Kind, id int64) (d jobRetryDetail, err error) {
	if d.finishedJob, err = c.finished(ctx, id); err != nil {
		return d, err
	}
	before, err := c.retried(ctx, id)
	if err == nil {
		d.Run, err = c.runOf(ctx, id)
	}
	if err == nil && kind != KindRerun {
		err = mayRetry(d.finishedJob, before, d.Run)
	}
	if err != nil {
		return d, err
	}
	d.Before = before.as
	if d.NewJob, err = c.queue.Reenqueue(ctx, c.tx, id); noRows(err) {
		err = errNoJob // another transaction has removed it
	}
	return d, err
}

// makeDue makes a waiting job due now.
func (c jobsTx) makeDue(ctx context.Context, id int64, j lockedJob) error {
	switch {
	case j.State == jobs.StateRunning:
		return &StateError{j.State, "let its run end, or Cancel it, and retry it then"}
	case j.due:
		return &StateError{j.State, "it is due already, and runs once a worker that has a handler for its kind is free; its queue may be paused or capped (Queues shows that)"}
	}
	return c.queue.MakeDue(ctx, c.tx, id)
}

// retry is the latest retry of a job. The zero retry means that the job was not retried.
type retry struct {
	as int64
	at time.Time
	by string
}

// retried returns the latest retry of a job. Concurrent retries of one job wait for each other,
// by an advisory lock.
func (c jobsTx) retried(ctx context.Context, id int64) (r retry, err error) {
	if _, err := exec(ctx, c.tx, "wait for others who retry it", `SELECT pg_advisory_xact_lock(hashtextextended($1::text, $2::bigint))`, "retry of "+c.t.Jobs.String(), id); err != nil {
		return r, err
	}
	err = c.tx.QueryRowContext(ctx, `
SELECT (detail->>'new_job')::bigint, `+pgdriver.Time(`created_at`)+`, operator FROM `+c.t.Operations.SQL()+`
WHERE job_id = $1::bigint AND detail->>'new_job' IS NOT NULL ORDER BY id DESC LIMIT 1`, id).Scan(&r.as, &r.at, &r.by)
	if err != nil && !noRows(err) {
		return r, fmt.Errorf("read whether it was retried: %w", err)
	}
	return r, nil
}

// runOf returns the run of a flow whose step a finished job is. It is 0 if the job is no step,
// or if its run was removed. The upper bits of a step's id are the run's id.
func (c jobsTx) runOf(ctx context.Context, id int64) (run int64, err error) {
	err = c.tx.QueryRowContext(ctx, `
SELECT r.id FROM `+c.t.History.SQL()+` AS j CROSS JOIN LATERAL (SELECT r.id FROM `+runsOfSteps(c.t)+`) AS r WHERE j.id = $1::bigint`, id).Scan(&run)
	if err != nil && !noRows(err) {
		return 0, fmt.Errorf("read its run of a flow: %w", err)
	}
	return run, nil
}

// runsOfSteps is a FROM item for the runs r that have job j as a step. The metadata of a user
// may hold any value under the key flow_step.
func runsOfSteps(t tables.Jobs) string {
	return t.FlowRuns.SQL() + ` AS r JOIN ` + t.FlowSteps.SQL() + ` AS s ON r.id = s.id >> 30
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
