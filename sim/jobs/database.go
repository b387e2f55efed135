package jobs

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/sim/events"
)

// jobsTables are where the database itself records what becomes of jobs: the committed transactions
// of enqueuers, every step of each job, the counts that a claim of a queue with a cap or a pause
// reads again, and the runs that were taken from workers that counted as dead. A setting of an
// operator binds claims that begin a second later.
const jobsTables = `
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

// database is the database of a run of jobs.
type database struct{ *events.Database }

// clock is the server's time at zero seconds of the ledgers, for statements.
func (d *database) clock(ctx context.Context, began time.Time) (zero time.Time, err error) {
	sent := time.Now()
	var theirs time.Time
	err = d.DB.QueryRowContext(ctx, `SELECT clock_timestamp()`).Scan(&theirs)
	middle := sent.Add(time.Since(sent) / 2)
	return theirs.Add(-middle.Sub(began)), d.Mine(ctx, err)
}

const pulseTable = `
CREATE TABLE sim_pulse (at TIMESTAMPTZ NOT NULL);
INSERT INTO sim_pulse VALUES (clock_timestamp())`
