package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// Role names with quotes, dollars and semicolons are quoted.
func TestGrantsQuoteNames(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	apply(t, d.DB, nil)
	apply(t, d.DB, &custom)
	role := `a'b"c$do$; -- ` + list(t, d.DB, `SELECT right(current_database(), 16)::text`)[0]
	d.Exec(t, `CREATE ROLE `+ident.Quote(role))
	t.Cleanup(func() {
		d.Exec(t, `DROP OWNED BY `+ident.Quote(role))
		d.Exec(t, `DROP ROLE `+ident.Quote(role))
	})
	for _, c := range []*migrations.Config{nil, &custom} {
		text, err := migrations.Grants(c, migrations.Roles{Writer: role, Worker: role, Operator: role, Reader: role})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := d.OpenPQ(t).ExecContext(t.Context(), text); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
		}
	}
	equal(t, "tables and sequences that the role may not use", list(t, d.DB, `
SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_roles AS r ON r.rolname LIKE 'a''b"c$do$; -- %' AND r.rolname LIKE '%' || right(current_database(), 16)
WHERE c.relkind = 'r' AND c.relnamespace::regnamespace::text IN ('public', 'infra', 'progress', 'audit', 'log') AND NOT has_table_privilege(r.oid, c.oid, 'SELECT')`), nil)
}

// The owner of the tables, without other rights, runs the text in one transaction. A grant that
// needs a superuser becomes a warning.
func TestGrantsByTheOwner(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	suffix := list(t, d.DB, `SELECT right(current_database(), 16)::text`)[0]
	owner, role := "owner_"+suffix, "role_"+suffix
	d.Exec(t, `CREATE ROLE `+owner+`; CREATE ROLE `+role)
	t.Cleanup(func() {
		d.Exec(t, `DROP OWNED BY `+owner+`, `+role)
		d.Exec(t, `DROP ROLE `+owner+`, `+role)
	})
	d.Exec(t, `CREATE SCHEMA app AUTHORIZATION `+owner)
	db := d.OpenSet(t, "search_path", "app")
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), `SET ROLE `+owner); err != nil {
		t.Fatal(err)
	}
	apply(t, db, nil)
	if err := migrations.ApplyJobs(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	text, err := migrations.Grants(nil, migrations.Roles{Writer: role, Worker: role, Operator: role, Reader: role})
	if err != nil {
		t.Fatal(err)
	}
	ofJobs, err := migrations.JobsGrants(nil, migrations.JobsRoles{Client: role, Worker: role, Operator: role, Reader: role})
	if err != nil {
		t.Fatal(err)
	}
	text += ofJobs
	granted := func() string {
		return list(t, db, `SELECT concat_ws(' ', has_table_privilege('`+role+`', 'consumer_checkpoints', 'UPDATE'), has_table_privilege('`+role+`', 'jobs', 'UPDATE'),
			pg_has_role('`+role+`', 'pg_read_all_stats', 'MEMBER'))`)[0]
	}
	for _, want := range []string{"t t f", "t t t"} {
		if _, err := db.ExecContext(t.Context(), "BEGIN; "+text+" COMMIT", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if got := granted(); got != want {
			t.Errorf("granted: %s, want %s", got, want)
		}
		if _, err := db.ExecContext(t.Context(), `RESET ROLE`); err != nil { // a superuser
			t.Fatal(err)
		}
	}
}

func TestJobsGrantsQuoteNames(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	role := `a'b"c%s$do$; -- ` + list(t, d.DB, `SELECT right(current_database(), 16)::text`)[0]
	d.Exec(t, `CREATE ROLE `+ident.Quote(role))
	t.Cleanup(func() {
		d.Exec(t, `DROP OWNED BY `+ident.Quote(role))
		d.Exec(t, `DROP ROLE `+ident.Quote(role))
	})
	c := migrations.Config{Names: store.Names{Jobs: "infra.work"}, ConsumerCheckpointsTable: custom.ConsumerCheckpointsTable}
	if err := migrations.ApplyJobs(t.Context(), d.DB, &c); err != nil {
		t.Fatal(err)
	}
	text, err := migrations.JobsGrants(&c, migrations.JobsRoles{Client: role, Worker: role, Operator: role, Reader: role})
	if err != nil {
		t.Fatal(err)
	}
	for _, tables := range []string{"those of jobs", "those of consumers too"} {
		if _, err := d.OpenPQ(t).ExecContext(t.Context(), text); err != nil {
			t.Fatalf("with %s: %v in\n%s", tables, err, text)
		}
		apply(t, d.DB, &migrations.Config{ConsumerCheckpointsTable: custom.ConsumerCheckpointsTable})
	}
	equal(t, "tables that the role may use", list(t, d.DB, `
SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_roles AS r ON r.rolname LIKE 'a''b"c%' AND r.rolname LIKE '%' || right(current_database(), 16)
WHERE c.relkind = 'r' AND NOT c.relnamespace::regnamespace::text LIKE ANY ('{infra,pg_%,information_schema}') AND has_table_privilege(r.oid, c.oid, 'SELECT')
	AND has_schema_privilege(r.oid, c.relnamespace, 'USAGE') ORDER BY 1`),
		[]string{"consumer_gap_skips", custom.ConsumerCheckpointsTable, custom.ConsumerCheckpointsTable + "_dead_letters"})
}

func TestJobsGrantsWithoutRoles(t *testing.T) {
	t.Parallel()
	text, err := migrations.JobsGrants(nil, migrations.JobsRoles{})
	if err != nil || strings.Contains(text, "GRANT ") && strings.Contains(text, "\nGRANT") || strings.Contains(text, "EXECUTE") {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err := migrations.JobsGrants(nil, migrations.JobsRoles{Client: "public"}); err == nil || !strings.Contains(err.Error(), "JobsRoles.Client") {
		t.Errorf("everybody is a client: %v", err)
	}
	for _, c := range []migrations.Config{{Names: store.Names{Jobs: "a b"}}, {ConsumerCheckpointsTable: "a b"}} {
		if _, err := migrations.JobsGrants(&c, migrations.JobsRoles{}); err == nil {
			t.Error("a table a b has privileges")
		}
	}
}

func TestGrantsWithoutRoles(t *testing.T) {
	t.Parallel()
	text, err := migrations.Grants(nil, migrations.Roles{})
	if err != nil || strings.Contains(text, "\nGRANT") || strings.Contains(text, "EXECUTE") {
		t.Errorf("%v\n%s", err, text)
	}
	for name, says := range map[string]string{
		"public":                "create a role",
		"none":                  "create a role",
		"a\nb":                  "no name of a role",
		"a\xff":                 "no name of a role",
		strings.Repeat("r", 64): "64 bytes",
	} {
		if _, err := migrations.Grants(nil, migrations.Roles{Operator: name}); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "Roles.Operator") {
			t.Errorf("a role %q: %v, want %q", name, err, says)
		}
	}
	if _, err := migrations.Grants(&migrations.Config{EventsTable: "a b"}, migrations.Roles{}); err == nil {
		t.Error("a table a b has privileges")
	}
}
