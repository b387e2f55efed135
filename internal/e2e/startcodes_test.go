package e2e

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/schedule"
	"github.com/pgfrontier/worker/jobs/table"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store/consumer"
)

// startCodes are the errors by which a program tells apart why a Start refused, and every name
// that they have.
var startCodes = map[string][]error{
	"configuration":       {worker.ErrInvalidConfig, jobs.ErrInvalidConfig, table.ErrInvalidConfig},
	"outage":              {worker.ErrOutage, jobs.ErrOutage, table.ErrOutage},
	"standby":             {worker.ErrStandby, jobs.ErrStandby, table.ErrStandby},
	"privileges":          {worker.ErrPrivileges, jobs.ErrPrivileges, table.ErrPrivileges},
	"prepared statements": {worker.ErrPreparedStatements, jobs.ErrPreparedStatements, table.ErrPreparedStatements},
	"session locks":       {worker.ErrTransactionPooling, jobs.ErrTransactionPooling},
	"not applied":         {migrations.ErrNotApplied},
	"newer":               {migrations.ErrNewerVersion},
	"unfit":               {table.ErrUnfit},
}

// starting is a Start that tries again for a moment only.
type starting func(ctx context.Context, db *sql.DB) error

var starts = map[string]starting{
	"worker": func(ctx context.Context, db *sql.DB) error {
		return worker.New(db, newStore(), []consumer.Consumer{&ledger{name: "c"}},
			worker.WithHeartbeatInterval(10*time.Millisecond), worker.WithRetryLimit(20*time.Millisecond), worker.WithLogger(nil)).Start(ctx)
	},
	"jobs": func(ctx context.Context, db *sql.DB) error {
		handlers := jobs.NewHandlers()
		jobs.Register(handlers, func(context.Context, *jobs.Job[started]) error { return nil })
		return jobs.NewWorker(db, handlers, jobs.WithStartLimit(10*time.Millisecond)).Start(ctx)
	},
	"jobs/table": func(ctx context.Context, db *sql.DB) error {
		s := table.NewStore(db, table.Options[int64]{TableName: "rows", Scan: func(r table.Row) (id int64, err error) { return id, r.Scan(&id) }, ColumnExpressions: []string{"id"}})
		return table.NewWorker(s, table.Handler[int64]{Handle: func(context.Context, *table.Job[int64]) error { return nil }}, table.WorkerOptions{StartLimit: 10 * time.Millisecond}).Start(ctx)
	},
	"jobs/schedule": func(ctx context.Context, db *sql.DB) error {
		daily := schedule.Job("s", schedule.Every(24*time.Hour), func(time.Time) jobs.Args { return started{} })
		return schedule.New(db, jobs.NewClient(db), daily).WithStartLimit(10 * time.Millisecond).Start(ctx)
	},
}

type started struct{}

func (started) Kind() string { return "started" }

const startedRows = `CREATE TABLE rows (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'queued', failure_message text, queued_at timestamptz DEFAULT now(),
	started_at timestamptz, last_heartbeat_at timestamptz, finished_at timestamptz, process_after timestamptz, num_resets integer NOT NULL DEFAULT 0,
	num_failures integer NOT NULL DEFAULT 0, execution_logs json[], worker_hostname text NOT NULL DEFAULT '', cancel boolean NOT NULL DEFAULT false)`

// Every Start that refuses says why by one of the same errors, and by that one alone.
func TestStartCodes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, startedRows)
	away, _ := d.OpenAway(t)
	var role string
	if err := d.DB.QueryRow(`SELECT current_database() || '_started'`).Scan(&role); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { d.Exec(t, `DROP ROLE `+role) })
	expectStarts(t, "no pool", nil, "configuration", "configuration")
	expectStarts(t, "a server that is away", away, "outage", "outage")
	expectStarts(t, "sessions that are read-only", d.OpenSet(t, "default_transaction_read_only", "on"), "standby", "standby")
	expectStarts(t, "a role without privileges", d.OpenSet(t, "role", role), "privileges", "privileges")
	d.Exec(t, `DROP TABLE consumer_gap_skips, jobs, rows`)
	expectStarts(t, "tables that are missing", d.DB, "not applied", "unfit")
	d.Exec(t, `UPDATE consumer_checkpoints_schema SET version = 1000, applied = 1000`)
	d.Exec(t, `UPDATE jobs_schema SET version = 1000, applied = 1000`)
	expectStarts(t, "newer tables", d.DB, "newer", "unfit")
}

// expectStarts tries all Starts at once. That of jobs/table may have another code: it knows no
// version.
func expectStarts(t *testing.T, what string, db *sql.DB, code, ofTable string) {
	t.Helper()
	var all sync.WaitGroup
	for name, start := range starts {
		want := code
		if name == "jobs/table" {
			want = ofTable
		}
		all.Go(func() { expectStart(t, name+" on "+what, start, db, want) })
	}
	all.Wait()
}

func expectStart(t *testing.T, what string, start starting, db *sql.DB, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	err := start(ctx, db)
	if err == nil {
		t.Errorf("%s: Start returned nil, want the code %q", what, want)
	}
	for code, names := range startCodes {
		for _, name := range names {
			if errors.Is(err, name) != (code == want) {
				t.Errorf("%s: %v is %q: %v, want %q alone", what, err, code, code != want, want)
			}
		}
	}
}
