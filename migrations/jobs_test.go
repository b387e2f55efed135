package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

var jobsTables = []string{
	"jobs", "jobs_attempts", "jobs_changes", "jobs_emitted", "jobs_emitted_through", "jobs_flow_runs", "jobs_flow_steps", "jobs_flow_sweep", "jobs_flows", "jobs_history", "jobs_leader", "jobs_logs",
	"jobs_once", "jobs_operations", "jobs_past_workers", "jobs_queues", "jobs_schedules", "jobs_schema", "jobs_token", "jobs_wanted", "jobs_workers",
}

// The tables of jobs and of the worker do not need each other.
func TestApplyJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	if err := migrations.CheckJobs(t.Context(), d.DB, nil); !errors.Is(err, migrations.ErrNotApplied) || !strings.Contains(err.Error(), "call migrations.ApplyJobs") {
		t.Errorf("without tables: %v", err)
	}
	for range 2 {
		if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
			t.Fatal(err)
		}
	}
	tables := list(t, d.DB, `SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname COLLATE "C"`)
	if !slices.Equal(tables, jobsTables) {
		t.Errorf("the tables are %q", tables)
	}
	if err := migrations.CheckJobs(t.Context(), d.DB, nil); err != nil {
		t.Error(err)
	}
	equal(t, "indexes", list(t, d.DB, indexesQuery+` AND tablename = 'jobs_history'`), strings.Split(strings.TrimSpace(`
jobs_history: UNIQUE jobs_history_pkey (id)
jobs_history: jobs_history_queue_finished_at_idx (queue, finished_at)
jobs_history: jobs_history_unsuccessful_idx (queue, state, id) WHERE (state <> 'completed'::text)
jobs_history: jobs_history_unacknowledged_idx (queue) WHERE ((state = 'failed'::text) AND (acknowledged_at IS NULL))
`), "\n"))
	equal(t, "version", list(t, d.DB, `SELECT version || ' of ' || applied FROM jobs_schema`), []string{fmt.Sprint("1 of ", migrations.JobsVersion)})
	d.Exec(t, `ALTER TABLE jobs_history DROP acknowledged_at; UPDATE jobs_schema SET applied = 3`) // as in version 3
	if err := migrations.CheckJobs(t.Context(), d.DB, nil); !errors.Is(err, migrations.ErrNotApplied) || !strings.Contains(err.Error(), "acknowledged_at") {
		t.Errorf("with the tables of version 3: %v", err)
	}
	if err := errors.Join(migrations.ApplyJobs(t.Context(), d.DB, nil), migrations.CheckJobs(t.Context(), d.DB, nil)); err != nil {
		t.Error(err)
	}
	if err := migrations.Check(t.Context(), d.DB, nil); !errors.Is(err, migrations.ErrNotApplied) {
		t.Errorf("the worker's tables: %v", err)
	}
	if err := migrations.Apply(t.Context(), d.DB, nil); err != nil {
		t.Error(err)
	}
}

// The columns that claims and ends of jobs change are in no index, and the table is vacuumed
// early. The columns that they search are in the indexes of their names.
func TestJobsTableStorage(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	equal(t, "indexes", list(t, d.DB, indexesQuery+` AND tablename = 'jobs'`), strings.Split(strings.TrimSpace(`
jobs: UNIQUE jobs_pkey (id)
jobs: jobs_claim_idx (queue, priority, run_at, id) WHERE (state = 'available'::text)
jobs: jobs_running_idx (queue, claimed_by) WHERE (state = 'running'::text)
jobs: UNIQUE jobs_unique_key_idx (unique_key) WHERE (unique_key IS NOT NULL)
jobs: jobs_good_until_idx (good_until) WHERE ((good_until IS NOT NULL) AND (state = 'available'::text))
`), "\n"))
	if options := list(t, d.DB, `SELECT unnest(reloptions) FROM pg_class WHERE oid = 'jobs'::regclass`); !slices.Contains(options, "fillfactor=70") || !slices.Contains(options, "autovacuum_vacuum_scale_factor=0.02") {
		t.Errorf("its storage parameters are %q", options)
	}
}

// Only a running job has a claim.
func TestClaimAndStateAgree(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	const me = `'00000000-0000-0000-0000-000000000001'`
	for _, wrong := range []string{
		`(state, claim) VALUES ('running', 1)`, `(state, claimed_by) VALUES ('running', ` + me + `)`, `(state) VALUES ('running')`,
		`(state, claim, claimed_by) VALUES ('available', 1, ` + me + `)`, `(state) VALUES ('waiting')`,
		`(claim) VALUES (1)`, `(claimed_by) VALUES (` + me + `)`,
		`(queue) VALUES ('*')`, `(queue) VALUES ('')`, `(priority) VALUES (0)`, `(priority) VALUES (10)`, `(max_attempts) VALUES (0)`, `(state) VALUES ('done')`,
	} {
		columns, values, _ := strings.Cut(wrong, ") VALUES (")
		if _, err := d.DB.ExecContext(t.Context(), `INSERT INTO jobs `+columns+`, kind) VALUES (`+strings.TrimSuffix(values, ")")+`, 'k')`); err == nil {
			t.Errorf("there may be a job with %s", wrong)
		}
	}
	d.Exec(t, `INSERT INTO jobs (kind, state, claim, claimed_by) VALUES ('k', 'running', 1, `+me+`), ('k', 'available', NULL, NULL)`)
}

// A schema and a prefix move every table of package tables.
func TestTablesWithOtherNames(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := &migrations.Config{Names: store.Names{Schema: "app", Prefix: "x_"}}
	text, err := migrations.JobsSQL(c)
	if err != nil {
		t.Fatal(err)
	}
	d.Exec(t, text)
	d.Exec(t, text)
	if err := migrations.CheckJobs(t.Context(), d.DB, c); err != nil {
		t.Error(err)
	}
	if err := errors.Join(migrations.ApplyJobs(t.Context(), d.DB, c), migrations.Apply(t.Context(), d.DB, c)); err != nil {
		t.Error(err)
	}
	of, err := tables.Parse(c.Names)
	ofJobs, err2 := tables.ParseJobs(c.Names)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	var want []string
	for _, table := range append(of.All(), ofJobs.All()...) {
		want = append(want, table.String())
	}
	slices.Sort(want)
	equal(t, "tables", list(t, d.DB, `SELECT (schemaname || '.' || tablename) COLLATE "C" AS name FROM pg_tables WHERE tablename LIKE 'x\_%' ORDER BY name`), want)
	if err := migrations.CheckJobs(t.Context(), d.DB, &migrations.Config{Names: store.Names{Jobs: strings.Repeat("x", 60)}}); err == nil || !strings.Contains(err.Error(), "Names.Jobs") {
		t.Errorf("a name that cannot be lengthened: %v", err)
	}
}
