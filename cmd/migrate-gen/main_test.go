package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// outcome runs the command.
func outcome(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err strings.Builder
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestFilesWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		args []string
		file string
		text func(*migrations.Config) (string, error)
		with migrations.Config
	}{
		{nil, "migrations/001_worker_tables.sql", migrations.SQL, migrations.Config{}},
		{nil, "migrations/001_worker_tables.sql", migrations.SQL, migrations.Config{}}, // again
		{[]string{"-store"}, "migrations/000_event_store_tables.sql", migrations.StoreSQL, migrations.Config{}},
		{[]string{"-store", "-output", "db/m", "-filename", "7.sql"}, "db/m/7.sql", migrations.StoreSQL, migrations.Config{}},
		{[]string{"-output", "./infra",
			"-worker-nodes-table", "i.n", "-consumer-assignments-table", "i.a", "-consumer-checkpoints-table", "i.c",
			"-consumer-gap-skips-table", "i.g", "-leader-election-table", "i.l"}, "infra/001_worker_tables.sql", migrations.SQL,
			migrations.Config{WorkerNodesTable: "i.n", ConsumerAssignmentsTable: "i.a", ConsumerCheckpointsTable: "i.c", ConsumerGapSkipsTable: "i.g", LeaderElectionTable: "i.l"}},
		{[]string{"-output", "infra", "-store", "-events-table", "i.e", "-aggregate-heads-table", "i.h"}, "infra/000_event_store_tables.sql", migrations.StoreSQL,
			migrations.Config{EventsTable: "i.e", AggregateHeadsTable: "i.h"}},
		{[]string{"-output", "named", "-events-table", "my_events"}, "named/000_event_store_tables.sql", migrations.StoreSQL, migrations.Config{EventsTable: "my_events"}},
		{[]string{"-output", "all", "-store", "-events-table", "i.e", "-worker-nodes-table", "i.n"}, "all/000_event_store_tables.sql", migrations.StoreSQL, migrations.Config{EventsTable: "i.e"}},
		{[]string{"-jobs"}, "migrations/002_job_tables.sql", migrations.JobsSQL, migrations.Config{}},
		{[]string{"-output", "jobs", "-jobs-table", "infra.work", "-filename", "9.sql"}, "jobs/9.sql", migrations.JobsSQL, migrations.Config{Names: store.Names{Jobs: "infra.work"}}},
		{[]string{"-output", "shared", "-schema", "app", "-prefix", "x_", "-worker-nodes-table", "i.n"}, "shared/001_worker_tables.sql", migrations.SQL,
			migrations.Config{Names: store.Names{Schema: "app", Prefix: "x_", WorkerNodes: "i.n"}}},
		{[]string{"-output", "jobs", "-jobs", "-worker-nodes-table", "i.n"}, "jobs/002_job_tables.sql", migrations.JobsSQL, migrations.Config{}},
	} {
		code, stdout, stderr := outcome(t, c.args...)
		says := "the worker's tables; -store"
		switch {
		case strings.Contains(c.file, "000") || slices.Contains(c.args, "-store"):
			says = "the event store's tables"
		case slices.Contains(c.args, "-jobs") || slices.Contains(c.args, "-jobs-table"):
			says = "migrate-gen: the tables of jobs\n"
		}
		if code != 0 || stdout != filepath.FromSlash(c.file)+"\n" || !strings.Contains(stderr, says) {
			t.Errorf("%q: status %d, printed %q and %q", c.args, code, stdout, stderr)
		}
		got, err := os.ReadFile(c.file)
		if err != nil {
			t.Error(err)
			continue
		}
		if want, err := c.text(&c.with); err != nil || string(got) != want {
			t.Errorf("%q wrote\n%s\n%v, want\n%s", c.args, got, err, want)
		}
	}
}

func TestGrantsPrinted(t *testing.T) {
	for _, c := range []struct {
		args  []string
		with  migrations.Config
		roles migrations.Roles
	}{
		{nil, migrations.Config{}, migrations.DefaultRoles()},
		{[]string{"-events-table", "log.events", "-worker-nodes-table", "infra.nodes", "-writer-role", "", "-worker-role", "W", "-operator-role", "o", "-reader-role", "r"},
			migrations.Config{EventsTable: "log.events", WorkerNodesTable: "infra.nodes"}, migrations.Roles{Worker: "W", Operator: "o", Reader: "r"}},
	} {
		code, stdout, stderr := outcome(t, append(c.args, "-grants")...)
		want, err := migrations.Grants(&c.with, c.roles)
		if code != 0 || err != nil || stdout != want || stderr != "" {
			t.Errorf("%q: status %d, complained %q, %v, printed\n%s\nwant\n%s", c.args, code, stderr, err, stdout, want)
		}
	}
}

func TestGrantsOfJobsPrinted(t *testing.T) {
	for _, c := range []struct {
		args  []string
		with  migrations.Config
		roles migrations.JobsRoles
	}{
		{[]string{"-jobs"}, migrations.Config{}, migrations.DefaultJobsRoles()},
		{[]string{"-jobs-table", "infra.work", "-consumer-checkpoints-table", "infra.cc", "-client-role", "c", "-worker-role", "W", "-operator-role", "", "-reader-role", "r"},
			migrations.Config{Names: store.Names{Jobs: "infra.work"}, ConsumerCheckpointsTable: "infra.cc"}, migrations.JobsRoles{Client: "c", Worker: "W", Reader: "r"}},
	} {
		code, stdout, stderr := outcome(t, append(c.args, "-grants")...)
		want, err := migrations.JobsGrants(&c.with, c.roles)
		if code != 0 || err != nil || stdout != want || stderr != "" {
			t.Errorf("%q: status %d, complained %q, %v, printed\n%s\nwant\n%s", c.args, code, stderr, err, stdout, want)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	if err := os.WriteFile("occupied", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"stray"}, `"stray"`},
		{[]string{"-store", "true"}, `"true"`},
		{[]string{"-bogus"}, "-bogus"},
		{[]string{"-filename"}, "-filename"},
		{[]string{"-filename", ""}, "OutputFilename is empty"},
		{[]string{"-store", "-filename", ""}, "OutputFilename is empty"},
		{[]string{"-filename", "../x.sql"}, "../x.sql"},
		{[]string{"-output", "occupied"}, "occupied"},
		{[]string{"-grants", "-output", "occupied"}, "-output is about a file"},
		{[]string{"-grants", "-store"}, "-store is about a file"},
		{[]string{"-worker-role", "w"}, "goes with -grants"},
		{[]string{"-grants", "-reader-role", "public"}, `"public"`},
		{[]string{"-worker-nodes-table", "a b"}, `"a b"`},
		{[]string{"-events-table", "e", "-leader-election-table", "l"}, "-events-table names a table of the event store, -leader-election-table one of the worker's"},
		{[]string{"-worker-nodes-table", "x", "-leader-election-table", "x"}, `both name "x"`},
		{[]string{"-jobs", "-store"}, "-store is about the event store's tables, -jobs about those of jobs"},
		{[]string{"-jobs-table", "j", "-events-table", "e"}, "-jobs-table names a table of jobs, and the event store's were asked for"},
		{[]string{"-jobs", "-events-table", "e"}, "-events-table names a table of the event store, and -jobs"},
		{[]string{"-jobs-table", "j", "-worker-nodes-table", "n"}, "for jobs with -jobs"},
		{[]string{"-jobs-table", "a b"}, `"a b"`},
		{[]string{"-jobs", "-client-role", "c"}, "goes with -grants"},
		{[]string{"-grants", "-client-role", "c"}, "it goes with -jobs"},
		{[]string{"-grants", "-jobs", "-writer-role", "w"}, "-writer-role names a role of the event store"},
		{[]string{"-grants", "-jobs", "-client-role", "none"}, "JobsRoles.Client"},
	} {
		code, stdout, stderr := outcome(t, c.args...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, c.says) || !strings.Contains(stderr, "-h") {
			t.Errorf("%q: status %d, printed %q and %q; want 2 and %s", c.args, code, stdout, stderr, c.says)
		}
	}
	left, err := filepath.Glob("*")
	if err != nil || fmt.Sprint(left) != "[migrations occupied]" && fmt.Sprint(left) != "[occupied]" {
		t.Errorf("there are %q, %v", left, err)
	}
}

func TestHelpNamesEveryFlagAndDefault(t *testing.T) {
	for _, arg := range []string{"-h", "-help", "--help"} {
		code, stdout, stderr := outcome(t, arg)
		if code != 0 || stderr != "" {
			t.Errorf("%s: status %d, complained %q", arg, code, stderr)
		}
		c, r := migrations.DefaultConfig(), roles{migrations.DefaultRoles(), migrations.DefaultJobsRoles()}
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		bind(flags, &c, &r)
		flags.VisitAll(func(f *flag.Flag) {
			line := ""
			for l := range strings.Lines(stdout) {
				if strings.HasPrefix(l, "  -"+f.Name+" ") {
					line = l
				}
			}
			if !strings.Contains(line, fmt.Sprintf("(default %q", f.DefValue)) {
				t.Errorf("%s: -%s (%s) is explained by %q", arg, f.Name, f.DefValue, line)
			}
		})
		for _, role := range []string{r.jobs.Worker, r.jobs.Operator, r.jobs.Reader} {
			if !strings.Contains(stdout, fmt.Sprintf("with -jobs %q", role)) {
				t.Errorf("%s does not say that %s is a default:\n%s", arg, role, stdout)
			}
		}
		for _, s := range []string{"-store ", "-jobs ", "-grants ", storeFilename, jobsFilename, "Exit status", "migrate-gen -output"} {
			if !strings.Contains(stdout, s) {
				t.Errorf("%s does not say %q:\n%s", arg, s, stdout)
			}
		}
		if strings.Contains(stdout, "%!") {
			t.Errorf("%s is garbled:\n%s", arg, stdout)
		}
	}
}
