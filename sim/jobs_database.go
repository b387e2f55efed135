package sim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/sim/history"
)

// jobTables are where the database itself writes down what becomes of jobs: the
// transactions of enqueuers that were committed, every step of each job, what a claim of
// a queue with a cap or a pause finds when it counts again, and the runs that were taken
// from workers that counted as dead. A setting of an operator binds claims that begin a
// second later.
const jobTables = `
CREATE TABLE sim_enqueuers (name TEXT NOT NULL, number BIGINT NOT NULL, PRIMARY KEY (name, number));
CREATE TABLE sim_effects (job BIGINT NOT NULL, attempt INT NOT NULL, worker UUID NOT NULL, token TEXT NOT NULL);
CREATE TABLE sim_settings (queue TEXT PRIMARY KEY, at TIMESTAMPTZ NOT NULL);
CREATE TABLE sim_bounds (fresh INTERVAL NOT NULL);
CREATE TABLE sim_steps (seq BIGSERIAL PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), job BIGINT NOT NULL, was TEXT NOT NULL, state TEXT NOT NULL,
	attempt INT NOT NULL, claim BIGINT, queue TEXT NOT NULL, priority INT NOT NULL, run_at TIMESTAMPTZ NOT NULL, bounded BOOLEAN NOT NULL, key TEXT);
CREATE TABLE sim_claims (at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), queue TEXT NOT NULL, cap BIGINT, running BIGINT NOT NULL, "all" BIGINT, total BIGINT NOT NULL, paused BOOLEAN NOT NULL);
CREATE TABLE sim_resets (at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), job BIGINT NOT NULL, attempt INT NOT NULL, worker UUID NOT NULL, started BOOLEAN NOT NULL, alive BOOLEAN NOT NULL);

CREATE FUNCTION sim_step() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF TG_OP = 'DELETE' THEN
		INSERT INTO sim_steps (job, was, state, attempt, claim, queue, priority, run_at, bounded, key)
		VALUES (OLD.id, OLD.state, '', OLD.attempt, OLD.claim, OLD.queue, OLD.priority, OLD.run_at, OLD.good_until IS NOT NULL, OLD.unique_key);
	ELSIF TG_OP = 'INSERT' OR OLD.state <> NEW.state OR OLD.claim IS DISTINCT FROM NEW.claim OR OLD.unique_key IS DISTINCT FROM NEW.unique_key THEN
		INSERT INTO sim_steps (job, was, state, attempt, claim, queue, priority, run_at, bounded, key)
		VALUES (NEW.id, CASE TG_OP WHEN 'INSERT' THEN '' ELSE OLD.state END, NEW.state, NEW.attempt, NEW.claim, NEW.queue, NEW.priority, NEW.run_at, NEW.good_until IS NOT NULL, NEW.unique_key);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_step AFTER INSERT OR UPDATE OR DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION sim_step();

CREATE FUNCTION sim_claim() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO sim_claims (queue, cap, running, "all", total, paused)
	SELECT c.queue, own.max_running, (SELECT count(*) FROM jobs WHERE state = 'running' AND queue = c.queue), every.max_running,
		(SELECT count(*) FROM jobs WHERE state = 'running'), own.paused_at IS NOT NULL
	FROM (SELECT DISTINCT n.queue FROM before AS o JOIN after AS n USING (id) WHERE o.state = 'available' AND n.state = 'running') AS c
	LEFT JOIN (SELECT q.* FROM jobs_queues AS q JOIN sim_settings AS s ON s.queue = q.name WHERE s.at < transaction_timestamp() - interval '1 second') AS own ON own.name = c.queue
	LEFT JOIN (SELECT q.* FROM jobs_queues AS q JOIN sim_settings AS s ON s.queue = q.name WHERE s.at < transaction_timestamp() - interval '1 second') AS every ON every.name = '*'
	WHERE own.max_running IS NOT NULL OR every.max_running IS NOT NULL OR own.paused_at IS NOT NULL;
	RETURN NULL;
END $$;
CREATE TRIGGER sim_claim AFTER UPDATE ON jobs REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION sim_claim();

-- A heartbeat that is old enough to have been seen, and fresh enough that nobody may
-- count its worker as dead.
CREATE FUNCTION sim_reset() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO sim_resets (job, attempt, worker, started, alive) SELECT NEW.job_id, NEW.attempt, NEW.worker_id, NEW.started_at IS NOT NULL, EXISTS (
		SELECT FROM jobs_workers AS w, sim_bounds AS b WHERE w.worker_id = NEW.worker_id
			AND w.heartbeat_at < statement_timestamp() - interval '300 milliseconds' AND w.heartbeat_at > statement_timestamp() - b.fresh);
	RETURN NULL;
END $$;
CREATE TRIGGER sim_reset AFTER INSERT ON jobs_attempts FOR EACH ROW WHEN (NEW.outcome = 'lost') EXECUTE FUNCTION sim_reset()`

// setUpJobs makes the tables of jobs, and finds out by how much the server's clock
// differs from ours.
func (d *database) setUpJobs(ctx context.Context, k JobKnobs) error {
	if err := migrations.ApplyJobs(ctx, d.db, nil); err != nil {
		return fmt.Errorf("sim: the tables of jobs: %w", err)
	}
	for _, statement := range []string{jobTables, scheduleTables, flowTables, pulseTable, fmt.Sprintf(`INSERT INTO sim_bounds VALUES (interval '%d milliseconds')`, (k.RescueDelay - 50*time.Millisecond).Milliseconds())} {
		if _, err := d.db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("sim: the tables of jobs: %w", err)
		}
	}
	return nil
}

// clock is the server's time at ours of zero seconds, as it is used in statements.
func (d *database) clock(ctx context.Context, began time.Time) (zero time.Time, err error) {
	sent := time.Now()
	var theirs time.Time
	err = d.db.QueryRowContext(ctx, `SELECT clock_timestamp()`).Scan(&theirs)
	middle := sent.Add(time.Since(sent) / 2)
	return theirs.Add(-middle.Sub(began)), d.mine(ctx, err)
}

// collectJobs reads what the oracle needs of the tables. zero is the server's time
// when the run began.
func (d *database) collectJobs(ctx context.Context, j *history.Jobs, zero time.Time) (err error) {
	since := func(expression string) string {
		return `extract(epoch FROM ` + expression + ` - $1::timestamptz)::float8`
	}
	read := func(what string, failed error) {
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("sim: read %s: %w", what, failed))
		}
	}
	var failed error
	j.Finished, failed = rows(ctx, d, func(r *sql.Rows, v *history.Finished) error {
		return r.Scan(&v.ID, &v.Token, &v.Kind, &v.Queue, &v.State, &v.Attempt, &v.Failures, &v.Resets, &v.MaxResets, &v.MaxAttempts, &v.Worker, &v.Claim, &v.CancelAsked,
			&v.StartedAt, &v.GoodUntil, &v.FinishedAt, &v.Code, &v.Result)
	}, `SELECT id, args->>'token', kind, queue, state, attempt, failures, resets, max_resets, coalesce(max_attempts, 0), coalesce(claimed_by::text, ''), coalesce(claim, 0), cancel_at IS NOT NULL,
		`+since("started_at")+`, `+since("good_until")+`, `+since("finished_at")+`, coalesce(code, ''), coalesce(result::text, '') FROM jobs_history WHERE kind <> $2::text ORDER BY id`, zero, occupied)
	read("the finished jobs", failed)
	j.Left, failed = rows(ctx, d, func(r *sql.Rows, v *history.Unfinished) error {
		return r.Scan(&v.ID, &v.Token, &v.Kind, &v.Queue, &v.State, &v.Attempt, &v.Worker, &v.DueIn, &v.Expired)
	}, `SELECT id, args->>'token', kind, queue, state, attempt, coalesce(claimed_by::text, ''), extract(epoch FROM greatest(run_at, '1970-01-01') - clock_timestamp())::float8,
		coalesce(state = 'available' AND good_until < clock_timestamp(), false) FROM jobs ORDER BY id`)
	read("the unfinished jobs", failed)
	j.Attempts, failed = rows(ctx, d, func(r *sql.Rows, v *history.JobAttempt) error {
		return r.Scan(&v.ID, &v.Attempt, &v.Worker, &v.Claim, &v.StartedAt, &v.GoodUntil, &v.Outcome, &v.Code)
	}, `SELECT a.job_id, a.attempt, coalesce(a.worker_id::text, ''), coalesce(a.claim, 0), `+since("a.started_at")+`, `+since("h.good_until")+`, a.outcome, coalesce(a.code, '')
		FROM jobs_attempts AS a LEFT JOIN jobs_history AS h ON h.id = a.job_id ORDER BY a.job_id, a.attempt`, zero)
	read("the attempts", failed)
	j.Effects, failed = rows(ctx, d, func(r *sql.Rows, v *history.Effect) error {
		return r.Scan(&v.ID, &v.Attempt, &v.Worker, &v.Token)
	}, `SELECT job, attempt, worker::text, token FROM sim_effects ORDER BY job, attempt`)
	read("the effects", failed)
	j.Steps, failed = rows(ctx, d, func(r *sql.Rows, v *history.JobStep) error {
		return r.Scan(&v.At, &v.ID, &v.Was, &v.State, &v.Attempt, &v.Claim, &v.Queue, &v.Priority, &v.RunAt, &v.Bounded, &v.Key)
	}, `SELECT `+since("at")+`, job, was, state, attempt, coalesce(claim, 0), queue, priority, `+since("greatest(run_at, '1970-01-01')")+`, bounded, coalesce(key, '') FROM sim_steps ORDER BY seq`, zero)
	read("the steps", failed)
	j.Claims, failed = rows(ctx, d, func(r *sql.Rows, v *history.CappedRun) error {
		return r.Scan(&v.At, &v.Queue, &v.Cap, &v.Running, &v.All, &v.Total, &v.Paused)
	}, `SELECT `+since("at")+`, queue, cap, running, "all", total, paused FROM sim_claims ORDER BY at`, zero)
	read("the claims", failed)
	j.Resets, failed = rows(ctx, d, func(r *sql.Rows, v *history.JobReset) error {
		return r.Scan(&v.At, &v.ID, &v.Attempt, &v.Worker, &v.Started, &v.Alive)
	}, `SELECT `+since("at")+`, job, attempt, worker::text, started, alive FROM sim_resets ORDER BY at`, zero)
	read("the resets", failed)
	j.Emitted, failed = d.collectEmitted(ctx)
	read("the books of consumers", failed)
	read("the schedules", d.collectSchedules(ctx, j, zero))
	read("the runs of flows", d.collectFlows(ctx, j, zero))
	return err
}

// jobsAtRest counts the jobs that are due, those that run, the runs of flows and, before
// that, the events and the ticks that may become jobs.
func (d *database) jobsAtRest(ctx context.Context) (r history.JobsRest, err error) {
	if r.Behind, err = d.behind(ctx); err != nil {
		return r, err
	}
	if r.Overdue, err = d.overdue(ctx); err != nil {
		return r, err
	}
	err = d.query(ctx, func() error {
		return d.db.QueryRowContext(ctx, `
SELECT count(*) FILTER (WHERE state = 'available' AND run_at < clock_timestamp() + interval '1 minute' AND (good_until IS NULL OR good_until > clock_timestamp())),
	count(*) FILTER (WHERE state = 'running'), (SELECT count(*) FROM jobs_flow_runs WHERE state = 'running') FROM jobs`).Scan(&r.Due, &r.Running, &r.Flows)
	})
	return r, err
}
