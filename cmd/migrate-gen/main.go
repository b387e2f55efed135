// Command migrate-gen writes the SQL that creates and upgrades the tables of
// the worker, with -store those of the event store, or with -jobs those of jobs,
// as a file for any migration tool. With -grants it prints what database roles
// need. It writes what package migrations returns, as the verb migrate of
// cmd/pgfrontier prints it; that is another module, which this one does not need.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

const help = `migrate-gen writes the SQL that creates the worker's tables, with -store the
event store's, or with -jobs those of jobs, to a file for your migration tool.
Run the file before a worker starts. It can be run again: it upgrades older
tables in place.

Usage: migrate-gen [flags]

To apply and check them instead: pgfrontier migrate (docs/command-line.md).

    migrate-gen -output db/migrations -filename 002_worker_tables.sql
    migrate-gen -output db/migrations -store
    migrate-gen -output db/migrations -jobs
    migrate-gen -events-table app.events
    migrate-gen -worker-nodes-table infra.worker_nodes
    migrate-gen -grants -worker-role app_worker -reader-role "" | psql
    migrate-gen -grants -jobs -client-role app | psql

The file
  -output folder       where it goes, created if need be (default %q)
  -filename name       (default %q, with -store %q,
                       with -jobs %q)
  -store               write the event store's tables instead of the worker's
  -jobs                write the tables of jobs instead of the worker's

The tables, each "table" or "schema.table"; the schema is created, too
  -schema schema       of the tables that are named without one (default "")
  -prefix text         before the default names, as in shop_events (default "")
%s
The privileges, printed for all tables of the worker and the event store at
once, or with -jobs for those of jobs
  -grants              print GRANTs instead of writing a file
  -writer-role name    appends events (default %q)
  -client-role name    enqueues jobs (default %q)
  -worker-role name    runs consumers (default %q), or jobs
                       (with -jobs %q)
  -operator-role name  does what package ops does (default %q,
                       with -jobs %q)
  -reader-role name    reads events and how consumers stand (default %q),
                       or all about jobs (with -jobs %q)

The roles must exist; a name stands as it is, capital letters included, and an
empty one is left out. A worker of jobs reads how far consumers are that enqueue
jobs: with -grants -jobs, the names of their tables may be given, too.

Give all programs the same names, with the option WithNames of each package. An
existing file is replaced only if it is an earlier one of the same kind.

Exit status: 0 written or printed, 2 wrong usage or the file could not be written.
`

const (
	storeFilename = "000_event_store_tables.sql" // sorts before the worker's: the event log comes first
	jobsFilename  = "002_job_tables.sql"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fail := func(err error) int {
		fmt.Fprintf(stderr, "migrate-gen: %v\n(migrate-gen -h shows how it is used)\n", err)
		return command.Error
	}
	r, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		printHelp(stdout)
		return command.OK
	case err != nil:
		return fail(err)
	}
	if r.grants {
		text, err := r.privileges()
		if err != nil {
			return fail(err)
		}
		fmt.Fprint(stdout, text)
		return command.OK
	}
	generate, written := migrations.GeneratePostgres, "the worker's tables; -store writes the event store's, -jobs those of jobs"
	switch {
	case r.store:
		generate, written = migrations.GenerateStore, "the event store's tables"
	case r.jobs:
		generate, written = migrations.GenerateJobs, "the tables of jobs"
	}
	if err := generate(&r.config); err != nil {
		return fail(err)
	}
	fmt.Fprintf(stderr, "migrate-gen: %s\n", written)
	fmt.Fprintln(stdout, filepath.Join(r.config.OutputFolder, r.config.OutputFilename))
	return command.OK
}

// request is what to generate: the tables of the store, of jobs, or of the worker,
// or the privileges of roles.
type request struct {
	config              migrations.Config
	store, jobs, grants bool
	roles               roles
}

// roles are those of both deployments. The flags of some have one default for
// consumers, and another for jobs.
type roles struct {
	migrations.Roles
	jobs migrations.JobsRoles
}

func (r request) privileges() (string, error) {
	if r.jobs {
		return migrations.JobsGrants(&r.config, r.roles.jobs)
	}
	return migrations.Grants(&r.config, r.roles.Roles)
}

func parse(args []string) (r request, err error) {
	r = request{config: migrations.DefaultConfig(), roles: roles{migrations.DefaultRoles(), migrations.DefaultJobsRoles()}}
	flags := command.Flags("migrate-gen")
	bind(flags, &r.config, &r.roles)
	flags.BoolVar(&r.store, "store", false, "")
	flags.BoolVar(&r.jobs, "jobs", false, "")
	flags.BoolVar(&r.grants, "grants", false, "")
	if err := flags.Parse(args); err != nil {
		return r, err
	}
	if flags.NArg() > 0 {
		return r, fmt.Errorf("unexpected argument %q: everything is given by flags", flags.Arg(0))
	}
	given := command.Given(flags)
	if r.grants {
		return r, r.forGrants(given)
	}
	return r, r.forFile(given)
}

// forGrants completes a request for privileges.
func (r *request) forGrants(given map[string]bool) error {
	r.jobs = r.jobs || given["jobs-table"]
	ofFile, ofConsumers, ofJobs := firstOf(given, fileFlags), firstOf(given, consumerRoles), firstOf(given, jobsRoles)
	switch {
	case ofFile != "":
		return fmt.Errorf("-%s is about a file, and -grants prints: leave one of the two out", ofFile)
	case r.jobs && ofConsumers != "":
		return fmt.Errorf("-%s names a role of the event store, and -jobs is about those of jobs: run it twice, once without -jobs", ofConsumers)
	case !r.jobs && ofJobs != "":
		return fmt.Errorf("-%s names a role of jobs: it goes with -jobs", ofJobs)
	}
	for name, to := range map[string]struct{ from, to *string }{
		"worker-role":   {&r.roles.Worker, &r.roles.jobs.Worker},
		"operator-role": {&r.roles.Operator, &r.roles.jobs.Operator},
		"reader-role":   {&r.roles.Reader, &r.roles.jobs.Reader},
	} {
		if given[name] {
			*to.to = *to.from
		}
	}
	return nil
}

// forFile completes a request for a file, which holds one kind of tables.
func (r *request) forFile(given map[string]bool) error {
	ofStore, ofWorker, ofJobs, ofRole := firstOf(given, storeTables), firstOf(given, workerTables), firstOf(given, jobsTables), firstOf(given, roleFlags)
	const twice = "a file holds one kind: run it once for each"
	switch {
	case ofRole != "":
		return fmt.Errorf("-%s names a role that gets privileges: it goes with -grants", ofRole)
	case r.store && r.jobs:
		return fmt.Errorf("-store is about the event store's tables, -jobs about those of jobs, and %s", twice)
	case ofStore != "" && ofWorker != "" && !r.store:
		return fmt.Errorf("-%s names a table of the event store, -%s one of the worker's, and a file holds one of the two: run it twice, for the event store's with -store", ofStore, ofWorker)
	case ofJobs != "" && (r.store || ofStore != ""):
		return fmt.Errorf("-%s names a table of jobs, and the event store's were asked for: %s", ofJobs, twice)
	case ofJobs != "" && ofWorker != "" && !r.jobs:
		return fmt.Errorf("-%s names a table of jobs, -%s one of the worker's, and %s, for jobs with -jobs", ofJobs, ofWorker, twice)
	case r.jobs && ofStore != "":
		return fmt.Errorf("-%s names a table of the event store, and -jobs is about those of jobs: %s", ofStore, twice)
	}
	r.store, r.jobs = r.store || ofStore != "", r.jobs || ofJobs != ""
	switch {
	case given["filename"]:
	case r.store:
		r.config.OutputFilename = storeFilename
	case r.jobs:
		r.config.OutputFilename = jobsFilename
	}
	return nil
}

var (
	storeTables   = []string{"events-table", "aggregate-heads-table"}
	jobsTables    = []string{"jobs-table"}
	workerTables  = tablesBut(storeTables, jobsTables)
	fileFlags     = []string{"output", "filename", "store"}
	consumerRoles = []string{"writer-role"}
	jobsRoles     = []string{"client-role"}
	roleFlags     = []string{"writer-role", "client-role", "worker-role", "operator-role", "reader-role"}
)

// firstOf returns the first of some flags that was given, or "".
func firstOf(given map[string]bool, flags []string) string {
	for _, name := range flags {
		if given[name] {
			return name
		}
	}
	return ""
}

func bind(flags *flag.FlagSet, c *migrations.Config, r *roles) {
	for name, value := range map[string]*string{
		"output":        &c.OutputFolder,
		"filename":      &c.OutputFilename,
		"writer-role":   &r.Writer,
		"client-role":   &r.jobs.Client,
		"worker-role":   &r.Worker,
		"operator-role": &r.Operator,
		"reader-role":   &r.Reader,
	} {
		flags.StringVar(value, name, *value, "")
	}
	command.NameFlags(flags, &c.Names)
	for _, t := range tables.ConfiguredOf(&c.Names) {
		flags.StringVar(t.Name, tableFlag(t), "", "")
		flags.Lookup(tableFlag(t)).DefValue = t.Default
	}
}

// tableFlag returns the flag that names a table.
func tableFlag(t tables.Configured) string { return t.Key + "-table" }

// tablesBut returns the flags of tables that are in none of some lists.
func tablesBut(lists ...[]string) (flags []string) {
	for _, t := range tables.ConfiguredOf(&store.Names{}) {
		if !slices.Contains(slices.Concat(lists...), tableFlag(t)) {
			flags = append(flags, tableFlag(t))
		}
	}
	return flags
}

// tablesHelp has a line for each flag that names a table.
func tablesHelp() string {
	var b strings.Builder
	for _, t := range tables.ConfiguredOf(&store.Names{}) {
		implies := ""
		switch flag := tableFlag(t); {
		case slices.Contains(storeTables, flag):
			implies = "implies -store "
		case slices.Contains(jobsTables, flag):
			implies = "implies -jobs "
		}
		fmt.Fprintf(&b, "  -%-33s%s(default %q)\n", tableFlag(t)+" name", implies, t.Default)
	}
	return b.String()
}

func printHelp(w io.Writer) {
	d, r, j := migrations.DefaultConfig(), migrations.DefaultRoles(), migrations.DefaultJobsRoles()
	fmt.Fprintf(w, help, d.OutputFolder, d.OutputFilename, storeFilename, jobsFilename,
		tablesHelp(),
		r.Writer, j.Client, r.Worker, j.Worker, r.Operator, j.Operator, r.Reader, j.Reader)
}
