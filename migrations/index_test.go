package migrations_test

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// both returns a database with all tables.
func both(t *testing.T) *pgtest.Database {
	t.Helper()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	return d
}

func checkBoth(t *testing.T, d *pgtest.Database) error {
	t.Helper()
	return errors.Join(migrations.Check(t.Context(), d.DB, nil), migrations.CheckJobs(t.Context(), d.DB, nil))
}

func applyBoth(t *testing.T, d *pgtest.Database) error {
	t.Helper()
	return errors.Join(migrations.Apply(t.Context(), d.DB, nil), migrations.ApplyJobs(t.Context(), d.DB, nil))
}

const indexDefinitions = `SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'`

// A unique index that was dropped is a fault, and Apply and the SQL create it again.
func TestLostUniqueIndex(t *testing.T) {
	t.Parallel()
	for drop, fault := range map[string]string{
		`DROP INDEX jobs_unique_key_idx`:                                                 `"jobs" has no unique index on (unique_key) WHERE unique_key IS NOT NULL, named "jobs_unique_key_idx": call migrations.ApplyJobs`,
		`DROP INDEX jobs_flow_runs_flow_key_idx`:                                         `"jobs_flow_runs" has no unique index on (flow, key) WHERE key IS NOT NULL AND state = 'running', named "jobs_flow_runs_flow_key_idx"`,
		`ALTER TABLE jobs_emitted DROP CONSTRAINT jobs_emitted_pkey`:                     `"jobs_emitted" has no unique index on (emitter, position, n), named "jobs_emitted_pkey"`,
		`ALTER TABLE worker_nodes DROP CONSTRAINT worker_nodes_pkey`:                     `"worker_nodes" has no unique index on (worker_id), named "worker_nodes_pkey": call migrations.Apply`,
		`ALTER TABLE jobs_token DROP CONSTRAINT jobs_token_pkey`:                         `"jobs_token" has no unique index on ("only"), named "jobs_token_pkey"`,
		`ALTER TABLE worker_leader_election DROP CONSTRAINT worker_leader_election_pkey`: `"worker_leader_election" has no unique index on (name), named "worker_leader_election_name_idx"`,
	} {
		t.Run(drop, func(t *testing.T) {
			t.Parallel()
			for how, mend := range map[string]func(d *pgtest.Database) error{
				"Apply": func(d *pgtest.Database) error { return applyBoth(t, d) },
				"SQL": func(d *pgtest.Database) error {
					worker, err := migrations.SQL(nil)
					jobs, errJobs := migrations.JobsSQL(nil)
					d.Exec(t, worker+jobs)
					return errors.Join(err, errJobs)
				},
			} {
				d := both(t)
				before := len(list(t, d.DB, indexDefinitions))
				d.Exec(t, drop)
				if err := checkBoth(t, d); !errors.Is(err, migrations.ErrNotApplied) || !strings.Contains(err.Error(), fault) {
					t.Fatalf("%v does not say %s", err, fault)
				}
				if err := mend(d); err != nil {
					t.Fatalf("%s: %v", how, err)
				}
				if err := checkBoth(t, d); err != nil {
					t.Errorf("after %s: %v", how, err)
				}
				if after := len(list(t, d.DB, indexDefinitions)); after != before {
					t.Errorf("%s: %d indexes, before %d", how, after, before)
				}
			}
		})
	}
}

// An index that has the name of a unique index but is none is named, with its remedy.
func TestUniqueIndexReplaced(t *testing.T) {
	t.Parallel()
	const drop = `DROP INDEX jobs_unique_key_idx`
	for what, replace := range map[string]string{
		"invalid":           `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobs_unique_key_idx'::regclass`,
		"not unique":        drop + `; CREATE INDEX jobs_unique_key_idx ON jobs (unique_key) WHERE unique_key IS NOT NULL`,
		"other columns":     drop + `; CREATE UNIQUE INDEX jobs_unique_key_idx ON jobs (unique_key, id) WHERE unique_key IS NOT NULL`,
		"another predicate": drop + `; CREATE UNIQUE INDEX jobs_unique_key_idx ON jobs (unique_key) WHERE state = 'running'`,
		"an expression":     drop + `; CREATE UNIQUE INDEX jobs_unique_key_idx ON jobs (lower(unique_key)) WHERE unique_key IS NOT NULL`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := both(t)
			d.Exec(t, replace)
			const fault = `named "jobs_unique_key_idx", which is there and is invalid or of another kind: DROP INDEX "jobs_unique_key_idx" first`
			if err := checkBoth(t, d); !errors.Is(err, migrations.ErrNotApplied) || !strings.Contains(err.Error(), fault) {
				t.Errorf("%v does not say %s", err, fault)
			}
			if err := applyBoth(t, d); err == nil || !strings.Contains(err.Error(), fault) {
				t.Errorf("Apply: %v does not say %s", err, fault)
			}
			d.Exec(t, drop)
			if err := errors.Join(applyBoth(t, d), checkBoth(t, d)); err != nil {
				t.Error(err)
			}
		})
	}
}

// An index of another name, or with its columns in another order, is enough. Indexes that are not
// unique are no faults, and Apply creates them again.
func TestIndexesThatAreEnough(t *testing.T) {
	t.Parallel()
	d := both(t)
	before := list(t, d.DB, indexDefinitions)
	d.Exec(t, `
ALTER INDEX jobs_unique_key_idx RENAME TO other_unique_key;
ALTER TABLE jobs_emitted DROP CONSTRAINT jobs_emitted_pkey; CREATE UNIQUE INDEX other_emitted ON jobs_emitted (n, emitter, position)`)
	if err := errors.Join(checkBoth(t, d), applyBoth(t, d)); err != nil {
		t.Fatal(err)
	}
	if n := len(list(t, d.DB, indexDefinitions)); n != len(before) {
		t.Errorf("%d indexes, before %d", n, len(before))
	}
	d.Exec(t, `DROP INDEX jobs_claim_idx, jobs_workers_heartbeat_at_idx, events_aggregate_type_global_position_idx, consumer_gap_skips_consumer_name_gap_position_idx`)
	if err := checkBoth(t, d); err != nil {
		t.Errorf("without some indexes: %v", err)
	}
	if err := applyBoth(t, d); err != nil {
		t.Fatal(err)
	}
	after := list(t, d.DB, indexDefinitions)
	for _, index := range before {
		if !slices.Contains(after, index) && !strings.Contains(index, "jobs_unique_key_idx") && !strings.Contains(index, "jobs_emitted_pkey") {
			t.Errorf("Apply has not created %s", index)
		}
	}
}

// Rows that a lost index would have refused keep Apply from creating the index. The error names them.
func TestDuplicatesOfALostUniqueIndex(t *testing.T) {
	t.Parallel()
	for driver, open := range map[string]func(*pgtest.Database, *testing.T) *sql.DB{
		"pgx":    func(d *pgtest.Database, _ *testing.T) *sql.DB { return d.DB },
		"lib/pq": func(d *pgtest.Database, t *testing.T) *sql.DB { return d.OpenPQ(t) },
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			d := both(t)
			d.Exec(t, `DROP INDEX jobs_unique_key_idx; INSERT INTO jobs (kind, unique_key) VALUES ('a', 'k'), ('b', 'k'), ('c', 'other')`)
			err := migrations.ApplyJobs(t.Context(), open(d, t), nil)
			for _, want := range []string{`"jobs_unique_key_idx"`, "(unique_key)=(k) is duplicated", "DELETE the others or cancel their jobs", "23505"} {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v does not say %s", err, want)
				}
			}
			d.Exec(t, `DELETE FROM jobs WHERE kind = 'b'`)
			if err := errors.Join(applyBoth(t, d), checkBoth(t, d)); err != nil {
				t.Error(err)
			}
		})
	}
}
