package migrations

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// JobsVersion is the version of the tables of jobs, as [Version] is that of the worker's tables.
const JobsVersion = 4

// oldestJobs is the version of the oldest programs that may run beside the tables of jobs.
const oldestJobs = 1

// ApplyJobs creates or upgrades the tables of package jobs, in one transaction, as [Apply] does
// those of the worker. The two sets of tables do not need each other.
func ApplyJobs(ctx context.Context, db *sql.DB, c *Config) error {
	s, err := newJobsSchema(c)
	if err == nil {
		err = s.ensure(ctx, db)
	}
	return errtext.Of(err)
}

// CheckJobs returns nil if this program may use the tables of package jobs. Its errors are
// those of [Check].
func CheckJobs(ctx context.Context, q store.Querier, c *Config) error {
	s, err := newJobsSchema(c)
	if err == nil {
		err = s.check(ctx, q)
	}
	return errtext.Of(err)
}

// JobsSQL returns the tables of package jobs as SQL text, like [SQL].
func JobsSQL(c *Config) (string, error) {
	s, err := newJobsSchema(c)
	if err != nil {
		return "", err
	}
	return text(jobsHeader, schemasOf(s.own), s.ownStatements()), nil
}

const jobsHeader = "-- The tables of jobs. " + madeBy + again

// newJobsSchema validates the names and returns the tables of jobs.
func newJobsSchema(c *Config) (schema, error) {
	n, err := c.jobs()
	if err != nil {
		return schema{}, err
	}
	s := schema{own: jobsTables(n), edition: edition{n.Version, JobsVersion, oldestJobs,
		"call migrations.ApplyJobs with this table name, or run the SQL of migrations.JobsSQL"}}
	return s, checkDistinct(s.own)
}

// finishedColumns are the columns that a finished job keeps.
var finishedColumns = []string{
	"id BIGINT NOT NULL", "kind TEXT NOT NULL", "queue TEXT NOT NULL", "priority SMALLINT NOT NULL",
	"run_at TIMESTAMPTZ NOT NULL", "good_until TIMESTAMPTZ", "args JSONB NOT NULL", "meta JSONB", "created_at TIMESTAMPTZ NOT NULL",
	"attempt INT NOT NULL", "failures INT NOT NULL", "resets INT NOT NULL", "max_attempts INT", "max_resets INT NOT NULL",
	"claimed_by UUID", "claim BIGINT", "claimed_at TIMESTAMPTZ", "started_at TIMESTAMPTZ", "cancel_at TIMESTAMPTZ",
}

// hot are the storage parameters of the table that every claim and every end of a job changes. They
// leave room for updates on the page, and start vacuum long before a tenth of the table is dead.
const hot = "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0, " +
	"autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 5000"

// jobsTables returns the tables of jobs in order of creation. Unfinished and finished jobs have
// separate tables, so that the table of claims stays small.
func jobsTables(n tables.Jobs) []table {
	return []table{
		{
			Table: n.Jobs, comment: "the jobs that have not finished; claim is random, one for each claim statement",
			columns: []string{
				"id BIGSERIAL NOT NULL", "kind TEXT NOT NULL CHECK (kind <> '')",
				"queue TEXT NOT NULL DEFAULT 'default' CHECK (queue NOT IN ('', '*'))",
				"priority SMALLINT NOT NULL DEFAULT 5 CHECK (priority BETWEEN 1 AND 9)",
				"run_at " + now, "good_until TIMESTAMPTZ",
				"state TEXT NOT NULL DEFAULT 'available' CHECK (state IN ('available', 'running'))",
				"args JSONB NOT NULL DEFAULT '{}'", "meta JSONB", "created_at " + now,
				"attempt INT NOT NULL DEFAULT 0", "failures INT NOT NULL DEFAULT 0", "resets INT NOT NULL DEFAULT 0",
				"max_attempts INT CHECK (max_attempts > 0)", "max_resets INT NOT NULL DEFAULT 5 CHECK (max_resets >= 0)",
				"claimed_by UUID", "claim BIGINT", "claimed_at TIMESTAMPTZ", "started_at TIMESTAMPTZ", "cancel_at TIMESTAMPTZ",
				"unique_key TEXT", "until_start BOOLEAN NOT NULL DEFAULT false", "awaited BOOLEAN NOT NULL DEFAULT false",
			},
			// Every end of a run must clear the claim. Otherwise a worker that comes back could
			// finish a run of another worker.
			checks: []string{"(state = 'running') = (claim IS NOT NULL) AND (state = 'running') = (claimed_by IS NOT NULL)"},
			with:   hot,
			key:    "id", serial: "id",
			indexes: []index{
				{on: "queue, priority, run_at, id", where: "state = 'available'", as: "claim"},
				{on: "queue, claimed_by", where: "state = 'running'", as: "running"},
				{on: "unique_key", where: "unique_key IS NOT NULL", unique: true},
				{on: "good_until", where: "good_until IS NOT NULL AND state = 'available'"},
			},
		},
		{
			Table: n.History, comment: "the jobs that have finished",
			columns: append([]string{"state TEXT NOT NULL CHECK (state IN ('completed', 'failed', 'cancelled', 'expired', 'skipped'))"}, append(finishedColumns,
				"finished_at "+now, "code TEXT", "error TEXT", "result JSONB")...),
			key:     "id",
			changes: []string{"ADD COLUMN IF NOT EXISTS acknowledged_at TIMESTAMPTZ"}, // when an operator acknowledged a failed job
			indexes: []index{
				{on: "queue, finished_at"},
				{on: "queue, state, id", where: "state <> 'completed'", as: "unsuccessful"},                // for operators
				{on: "queue", where: "state = 'failed' AND acknowledged_at IS NULL", as: "unacknowledged"}, // for alarms
			},
		},
		{
			Table: n.Attempts, comment: "what ran and did not finish its job",
			columns: []string{
				"job_id BIGINT NOT NULL", "attempt INT NOT NULL", "claim BIGINT", "worker_id UUID", "started_at TIMESTAMPTZ", "ended_at " + now,
				"outcome TEXT NOT NULL CHECK (outcome IN ('error', 'snoozed', 'released', 'lost'))", "code TEXT", "error TEXT",
			},
			key: "job_id, attempt",
		},
		{
			Table: n.Logs, comment: "what handlers have logged",
			columns: []string{"id BIGSERIAL NOT NULL", "job_id BIGINT NOT NULL", "attempt INT NOT NULL", "entry JSONB NOT NULL", "updated_at " + now},
			key:     "id", serial: "id",
			indexes: []index{{on: "job_id, attempt, id"}},
		},
		{
			Table: n.Queues, comment: "what operators have set for a queue; * is all together",
			columns: []string{
				"name TEXT NOT NULL", "max_running INT CHECK (max_running >= 0)",
				"paused_at TIMESTAMPTZ", "paused_by TEXT", "paused_reason TEXT", "retention INTERVAL",
			},
			key: "name",
		},
		{
			Table: n.Wanted, comment: "until when an idle worker wants to be told of new jobs of a queue",
			columns: []string{"queue TEXT NOT NULL", "until TIMESTAMPTZ NOT NULL"},
			key:     "queue",
		},
		{
			Table: n.Operations, comment: "what operators have done to jobs and queues",
			columns: []string{
				"id BIGSERIAL NOT NULL", "job_id BIGINT", "queue TEXT", "operation TEXT NOT NULL", "detail JSONB",
				"operator TEXT NOT NULL", "reason TEXT NOT NULL", "created_at " + now,
			},
			key: "id", serial: "id",
			indexes: []index{
				{on: "job_id, id"},
				{on: "((detail->>'new_job')::bigint), id", where: "detail->>'new_job' IS NOT NULL", as: "made"}, // finds the retry that created a job
			},
		},
		{
			Table: n.Once, comment: "keys under which a job was enqueued once, whatever has become of it",
			columns: []string{"key TEXT NOT NULL", "job_id BIGINT NOT NULL", "hash TEXT NOT NULL", "expires_at TIMESTAMPTZ"},
			key:     "key",
			indexes: []index{{on: "expires_at", where: "expires_at IS NOT NULL"}},
		},
		{
			Table: n.Emitted, comment: "for which events consumers have enqueued jobs",
			columns: []string{"emitter TEXT NOT NULL", "position BIGINT NOT NULL", "n INT NOT NULL"},
			key:     "emitter, position, n",
		},
		{
			Table: n.EmittedThrough, comment: "up to where a consumer's events are settled, so that their rows are gone",
			columns: []string{"emitter TEXT NOT NULL", "position BIGINT NOT NULL"},
			key:     "emitter",
		},
		{
			Table: n.Schedules, comment: "the next tick of each schedule",
			columns: []string{
				"name TEXT NOT NULL", "hash TEXT NOT NULL", "next_at TIMESTAMPTZ", "last_at TIMESTAMPTZ",
				"paused_at TIMESTAMPTZ", "paused_by TEXT", "paused_reason TEXT", "resumed_at TIMESTAMPTZ",
			},
			key: "name",
		},
		{
			Table: n.Flows, comment: "the shapes of flows, each change of one a version",
			columns: []string{"name TEXT NOT NULL", "version TEXT NOT NULL", "shape JSONB NOT NULL", "created_at " + now},
			key:     "name, version",
		},
		{
			Table: n.FlowRuns, comment: "runs of flows; who changes a run or its steps locks its row first",
			columns: []string{
				"id BIGSERIAL NOT NULL CHECK (id < 8589934592)", "flow TEXT NOT NULL", "version TEXT NOT NULL",
				"state TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'completed', 'failed', 'cancelled'))",
				"key TEXT", "unfinished INT NOT NULL", "bad INT NOT NULL DEFAULT 0", "awaited BOOLEAN NOT NULL DEFAULT false",
				"cancel_at TIMESTAMPTZ", "created_at " + now, "finished_at TIMESTAMPTZ",
			},
			checks: []string{"(state = 'running') = (finished_at IS NULL)", "unfinished >= 0"},
			with:   "fillfactor = 70",
			key:    "id", serial: "id",
			indexes: []index{
				{on: "flow, key", where: "key IS NOT NULL AND state = 'running'", unique: true},
				{on: "finished_at, id", where: "finished_at IS NOT NULL"},
				{on: "id", where: "finished_at IS NULL", as: "unfinished"},
				{on: "flow, id"},
			},
		},
		{
			Table: n.FlowSteps, comment: "steps of runs; id is the run, the step's place in the flow and its place in a list, 33, 10 and 20 bits",
			columns: []string{
				"id BIGINT NOT NULL", "name TEXT NOT NULL",
				"state TEXT NOT NULL CHECK (state IN ('waiting', 'ready', 'spread', 'enqueued', 'completed', 'failed', 'cancelled', 'expired', 'skipped'))",
				"need INT NOT NULL DEFAULT 0", "may_fail INT NOT NULL DEFAULT 0", "blamed BOOLEAN NOT NULL DEFAULT false",
				"leaf BOOLEAN NOT NULL DEFAULT false", "optional BOOLEAN NOT NULL DEFAULT false", "quorum INT NOT NULL DEFAULT 0",
				"dependents JSONB NOT NULL DEFAULT '[]'", "list_id BIGINT", "spec JSONB NOT NULL",
				"job_id BIGINT", "finished_at TIMESTAMPTZ", "code TEXT", "error TEXT", "result JSONB",
			},
			checks: []string{"state <> 'enqueued' OR job_id IS NOT NULL AND finished_at IS NULL"},
			with:   "fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05",
			key:    "id",
			// No index contains the state, so the update at a step's end stays on its page.
			indexes: []index{{on: "job_id", where: "job_id IS NOT NULL"}},
		},
		{
			Table: n.FlowSweep, comment: "when a worker next reads which steps have ended without a report",
			columns: []string{onlyRow, "next_at TIMESTAMPTZ NOT NULL"},
			key:     `"only"`,
		},
		{
			Table: n.Workers, comment: "one row for each live process that runs jobs",
			columns: []string{
				"worker_id UUID NOT NULL", "heartbeat_at " + now, "created_at " + now, "updated_at " + now, "kinds TEXT[]",
				"hostname TEXT", "pid INT", "protocol INT NOT NULL DEFAULT 1", "build TEXT", "status JSONB",
			},
			key: "worker_id",
			changes: []string{
				"ADD COLUMN IF NOT EXISTS heartbeat_interval INTERVAL",
				"ADD COLUMN IF NOT EXISTS heartbeat_timeout INTERVAL", // as in the table of the workers of consumers
				"ADD COLUMN IF NOT EXISTS drain_requested_at TIMESTAMPTZ",
			},
			indexes: []index{{on: "heartbeat_at"}},
		},
		stoppedTable(n.Stopped),
		{
			Table: n.Leader, comment: "the lease of the leader, where no session lock can be used",
			columns: []string{"name TEXT NOT NULL", "worker_id UUID", "term BIGINT NOT NULL DEFAULT 0", "acquired_at TIMESTAMPTZ", "expires_at TIMESTAMPTZ"},
			key:     "name",
		},
		tokenTable(n.Token),
		{
			Table: n.Changes, comment: "counts what the workers should notice soon: arrivals, operations",
			columns: []string{onlyRow, "count BIGINT NOT NULL"},
			key:     `"only"`,
		},
		{
			Table: n.Version, comment: versionComment,
			columns: []string{onlyRow, "version INT NOT NULL", "applied INT"},
			key:     `"only"`,
		},
	}
}
