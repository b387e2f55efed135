package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/server"
)

// setUp makes the tables of jobs.
func (d *database) setUp(ctx context.Context, k Knobs) error {
	if err := migrations.ApplyJobs(ctx, d.DB, nil); err != nil {
		return fmt.Errorf("sim: the tables of jobs: %w", err)
	}
	for _, statement := range []string{jobsTables, scheduleTables, flowTables, pulseTable, fmt.Sprintf(`INSERT INTO sim_bounds VALUES (interval '%d milliseconds')`, (k.RescueDelay - 50*time.Millisecond).Milliseconds())} {
		if _, err := d.DB.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("sim: the tables of jobs: %w", err)
		}
	}
	return nil
}

// collect reads what the oracle needs of the tables. zero is the server's time
// when the run began.
func (d *database) collect(ctx context.Context, j *history.Jobs, zero time.Time) (err error) {
	since := func(expression string) string {
		return `extract(epoch FROM ` + expression + ` - $1::timestamptz)::float8`
	}
	read := func(what string, failed error) {
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("sim: read %s: %w", what, failed))
		}
	}
	var failed error
	j.Finished, failed = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.Finished) error {
		return r.Scan(&v.ID, &v.Token, &v.Kind, &v.Queue, &v.State, &v.Attempt, &v.Failures, &v.Resets, &v.MaxResets, &v.MaxAttempts, &v.Worker, &v.Claim, &v.CancelAsked,
			&v.StartedAt, &v.GoodUntil, &v.FinishedAt, &v.Code, &v.Result)
	}, `SELECT id, args->>'token', kind, queue, state, attempt, failures, resets, max_resets, coalesce(max_attempts, 0), coalesce(claimed_by::text, ''), coalesce(claim, 0), cancel_at IS NOT NULL,
		`+since("started_at")+`, `+since("good_until")+`, `+since("finished_at")+`, coalesce(code, ''), coalesce(result::text, '') FROM jobs_history WHERE kind <> $2::text ORDER BY id`, zero, occupied)
	read("the finished jobs", failed)
	j.Left, failed = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.Unfinished) error {
		return r.Scan(&v.ID, &v.Token, &v.Kind, &v.Queue, &v.State, &v.Attempt, &v.Worker, &v.DueIn, &v.Expired)
	}, `SELECT id, args->>'token', kind, queue, state, attempt, coalesce(claimed_by::text, ''), extract(epoch FROM greatest(run_at, '1970-01-01') - clock_timestamp())::float8,
		coalesce(state = 'available' AND good_until < clock_timestamp(), false) FROM jobs ORDER BY id`)
	read("the unfinished jobs", failed)
	j.Attempts, failed = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.JobAttempt) error {
		return r.Scan(&v.ID, &v.Attempt, &v.Worker, &v.Claim, &v.StartedAt, &v.GoodUntil, &v.Outcome, &v.Code)
	}, `SELECT a.job_id, a.attempt, coalesce(a.worker_id::text, ''), coalesce(a.claim, 0), `+since("a.started_at")+`, `+since("h.good_until")+`, a.outcome, coalesce(a.code, '')
		FROM jobs_attempts AS a LEFT JOIN jobs_history AS h ON h.id = a.job_id ORDER BY a.job_id, a.attempt`, zero)
	read("the attempts", failed)
	j.Effects, failed = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.Effect) error {
		return r.Scan(&v.ID, &v.Attempt, &v.Worker, &v.Token)
	}, `SELECT job, attempt, worker::text, token FROM sim_effects ORDER BY job, attempt`)
	read("the effects", failed)
	j.Steps, failed = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.JobStep) error {
		return r.Scan(&v.At, &v.ID, &v.Was, &v.State, &v.Attempt, &v.Claim, &v.Queue, &v.Priority, &v.RunAt, &v.Bounded, &v.Key)
	}, `SELECT `+since("at")+`, job, was, state, attempt, coalesce(claim, 0), queue, priority, `+since("greatest(run_at, '1970-01-01')")+`, bounded, coalesce(key, '') FROM sim_steps ORDER BY seq`, zero)
	read("the steps", failed)
	j.Claims, failed = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.CappedRun) error {
		return r.Scan(&v.At, &v.Queue, &v.Cap, &v.Running, &v.All, &v.Total, &v.Paused)
	}, `SELECT `+since("at")+`, queue, cap, running, "all", total, paused FROM sim_claims ORDER BY at`, zero)
	read("the claims", failed)
	j.Resets, failed = server.Rows(ctx, d.Instance.Database, func(r *sql.Rows, v *history.JobReset) error {
		return r.Scan(&v.At, &v.ID, &v.Attempt, &v.Worker, &v.Started, &v.Alive)
	}, `SELECT `+since("at")+`, job, attempt, worker::text, started, alive FROM sim_resets ORDER BY at`, zero)
	read("the resets", failed)
	j.Emitted, failed = d.collectEmitted(ctx)
	read("the ledgers of consumers", failed)
	read("the schedules", d.collectSchedules(ctx, j, zero))
	read("the runs of flows", d.collectFlows(ctx, j, zero))
	return err
}

// atRest counts what is left: the events and ticks that may become jobs, then the jobs that are due
// or run, and the runs of flows.
func (d *database) atRest(ctx context.Context) (r history.JobsRest, err error) {
	if r.Behind, err = d.behind(ctx); err != nil {
		return r, err
	}
	if r.Overdue, err = d.overdue(ctx); err != nil {
		return r, err
	}
	err = d.Query(ctx, func() error {
		return d.DB.QueryRowContext(ctx, `
SELECT count(*) FILTER (WHERE state = 'available' AND run_at < clock_timestamp() + interval '1 minute' AND (good_until IS NULL OR good_until > clock_timestamp())),
	count(*) FILTER (WHERE state = 'running'), (SELECT count(*) FROM jobs_flow_runs WHERE state = 'running') FROM jobs`).Scan(&r.Due, &r.Running, &r.Flows)
	})
	return r, err
}
