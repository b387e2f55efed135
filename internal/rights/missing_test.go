package rights_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// Missing names every table that hides rows from the role, and a statement that changes this.
func TestMissingNamesEveryTableUnderRowSecurity(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	if err := migrations.Apply(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	needs := slices.Concat(rights.Worker(events, true, true), rights.Log("events", "global_position", true),
		rights.JobsWorker(d.names, true), rights.JobsFlows(d.names), rights.JobsClient(d.names), rights.JobsEmitters(events))
	login := d.role("worker")
	role := ident.Quote(login)
	d.Exec(t, `GRANT USAGE ON SCHEMA infra TO `+role+`; GRANT ALL ON ALL TABLES IN SCHEMA infra, public TO `+role+`; GRANT ALL ON ALL SEQUENCES IN SCHEMA infra, public TO `+role)
	db := d.open(login)
	missing := func() string { return strings.Join(must(rights.Missing(t.Context(), db, needs)), "\n") }
	if got := missing(); got != "" {
		t.Fatalf("before: %s", got)
	}
	var names []string
	for _, n := range needs {
		if !strings.HasPrefix(n.Table, "pg_catalog.") {
			names = append(names, n.Table)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) < 28 {
		t.Errorf("%d tables: %v", len(names), names)
	}
	for _, name := range names {
		d.Exec(t, `ALTER TABLE `+name+` ENABLE ROW LEVEL SECURITY`)
		whole := d.scan(`SELECT n.nspname || '.' || c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = $1::text::regclass`, name)
		want := "row-level security hides rows from role " + role + ": ALTER ROLE " + role + " BYPASSRLS, or make the role the owner, or ALTER TABLE " + whole + " DISABLE ROW LEVEL SECURITY"
		if got := missing(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		d.Exec(t, `ALTER TABLE `+name+` DISABLE ROW LEVEL SECURITY`)
	}
}

// Row-level security counts if it applies to the role. A policy is enough only for a user's
// table, and only if it permits the required statement.
func TestRowSecurityAppliesToRole(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	login, other := d.role("worker"), d.role("other")
	role := ident.Quote(login)
	d.Exec(t, `CREATE TABLE things (id int); GRANT ALL ON things TO `+role)
	needs := func(policies bool) []rights.Need {
		return []rights.Need{
			{Table: "things", Privilege: "SELECT", Policies: policies}, {Table: "things", Privilege: "UPDATE", Policies: policies},
			{Table: "no_schema.things", Privilege: "SELECT", Policies: policies},
		}
	}
	const hides, all = "row-level security hides rows", "row-level security of public.things hides all rows"
	for _, test := range []struct {
		about, script string
		own, users    string // beginning of the remedy
		has           string // a part of the remedy
	}{
		{"a table without", ``, "", "", ""},
		{"enabled", `ALTER TABLE things ENABLE ROW LEVEL SECURITY`, hides, all, "DISABLE"},
		{"a policy for a part", `CREATE POLICY p ON things FOR SELECT USING (true)`, hides, all, " UPDATE: CREATE POLICY"},
		{"a policy for each part", `CREATE POLICY q ON things FOR UPDATE USING (true)`, hides, "", ""},
		{"one for others", `DROP POLICY q ON things; CREATE POLICY q ON things FOR UPDATE TO ` + ident.Quote(other) + ` USING (true)`, hides, all, " UPDATE: CREATE POLICY"},
		{"one for a group", `GRANT ` + ident.Quote(other) + ` TO ` + role, hides, "", ""},
		{"one that only restricts", `DROP POLICY p ON things; DROP POLICY q ON things; CREATE POLICY p ON things AS RESTRICTIVE USING (true)`, hides, all, "SELECT, UPDATE"},
		{"one for everything", `DROP POLICY p ON things; CREATE POLICY p ON things USING (id > 1)`, hides, "", ""},
		{"BYPASSRLS", `ALTER ROLE ` + role + ` BYPASSRLS`, "", "", ""},
		{"the owner", `ALTER ROLE ` + role + ` NOBYPASSRLS; ALTER TABLE things OWNER TO ` + role, "", "", ""},
		{"FORCE", `DROP POLICY p ON things; ALTER TABLE things FORCE ROW LEVEL SECURITY`, hides, all, "ALTER TABLE public.things NO FORCE ROW LEVEL SECURITY"},
	} {
		d.Exec(t, `BEGIN;`+test.script+`;COMMIT`)
		db := d.open(login)
		for policies, want := range map[bool]string{false: test.own, true: test.users} {
			got := strings.Join(must(rights.Missing(t.Context(), db, needs(policies))), "; ")
			if (got == "") != (want == "") || !strings.HasPrefix(got, want) {
				t.Errorf("%s, policies %v: %q, want %q", test.about, policies, got, want)
			}
			if got != "" && policies && !strings.Contains(got, test.has) {
				t.Errorf("%s: %q has no %q", test.about, got, test.has)
			}
		}
		if got := must(rights.Hidden(t.Context(), db, ident.Table{Name: "things"}, ident.Table{Schema: "no_schema", Name: "things"})); !strings.HasPrefix(got, test.own) || (got == "") != (test.own == "") {
			t.Errorf("%s: hidden is %q", test.about, got)
		}
	}
	if got := must(rights.Hidden(t.Context(), d.DB, must(tables.ParseJobs(store.Names{Jobs: "things"})).Jobs)); got != "" {
		t.Errorf("from a superuser: %q", got)
	}
}
