// Command migrate-gen writes the SQL that creates and upgrades the tables of
// the worker, or with -store those of the event store, as a file for any
// migration tool. With -grants it prints what database roles need.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/migrations"
)

const help = `migrate-gen writes the SQL that creates the worker's tables, or with -store the
event store's, to a file for your migration tool. Run the file before a worker
starts. It can be run again: it upgrades older tables in place.

Usage: migrate-gen [flags]

    migrate-gen -output db/migrations -filename 002_worker_tables.sql
    migrate-gen -output db/migrations -store
    migrate-gen -events-table app.events
    migrate-gen -worker-nodes-table infra.worker_nodes
    migrate-gen -grants -worker-role app_worker -reader-role "" | psql

The file
  -output folder       where it goes, created if need be (default %q)
  -filename name       (default %q, with -store %q)
  -store               write the event store's tables instead of the worker's

The tables, each "table" or "schema.table"; the schema is created, too
  -worker-nodes-table name          (default %q)
  -consumer-assignments-table name  (default %q)
  -consumer-checkpoints-table name  (default %q)
  -consumer-gap-skips-table name    (default %q)
  -leader-election-table name       (default %q)
  -events-table name                implies -store (default %q)
  -aggregate-heads-table name       implies -store (default %q)

The privileges, printed for all tables at once
  -grants              print GRANTs instead of writing a file
  -writer-role name    appends events (default %q)
  -worker-role name    runs consumers (default %q)
  -operator-role name  does what package ops does (default %q)
  -reader-role name    reads events and how consumers stand (default %q)

The roles must exist; a name stands as it is, capital letters included, and an
empty one is left out.

Give the worker the same names, with worker.WithWorkerNodesTable and so on. An
existing file is replaced only if it is an earlier one of the same kind.

Exit status: 0 written or printed, 2 wrong usage or the file could not be written.
`

// storeFilename sorts before the worker's: the event log comes first.
const storeFilename = "000_event_store_tables.sql"

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
		text, err := migrations.Grants(&r.config, r.roles)
		if err != nil {
			return fail(err)
		}
		fmt.Fprint(stdout, text)
		return command.OK
	}
	generate, written := migrations.GeneratePostgres, "the worker's tables; -store writes the event store's"
	if r.store {
		generate, written = migrations.GenerateStore, "the event store's tables"
	}
	if err := generate(&r.config); err != nil {
		return fail(err)
	}
	fmt.Fprintf(stderr, "migrate-gen: %s\n", written)
	fmt.Fprintln(stdout, filepath.Join(r.config.OutputFolder, r.config.OutputFilename))
	return command.OK
}

// request is what to generate: the tables of the store, those of the worker, or
// the privileges of roles.
type request struct {
	config        migrations.Config
	store, grants bool
	roles         migrations.Roles
}

func parse(args []string) (r request, err error) {
	r = request{config: migrations.DefaultConfig(), roles: migrations.DefaultRoles()}
	flags := command.Flags("migrate-gen")
	bind(flags, &r.config, &r.roles)
	flags.BoolVar(&r.store, "store", false, "")
	flags.BoolVar(&r.grants, "grants", false, "")
	if err := flags.Parse(args); err != nil {
		return r, err
	}
	if flags.NArg() > 0 {
		return r, fmt.Errorf("unexpected argument %q: everything is given by flags", flags.Arg(0))
	}
	given := command.Given(flags)
	ofStore, ofWorker := firstOf(given, storeTables), firstOf(given, workerTables)
	ofFile, ofRole := firstOf(given, fileFlags), firstOf(given, roleFlags)
	switch {
	case r.grants && ofFile != "":
		return r, fmt.Errorf("-%s is about a file, and -grants prints, for the tables of both: leave one of the two out", ofFile)
	case r.grants:
		return r, nil
	case ofRole != "":
		return r, fmt.Errorf("-%s names a role that gets privileges: it goes with -grants", ofRole)
	case ofStore != "" && ofWorker != "" && !r.store:
		return r, fmt.Errorf("-%s names a table of the event store, -%s one of the worker's, and a file holds one of the two: run it twice, for the event store's with -store", ofStore, ofWorker)
	}
	if r.store = r.store || ofStore != ""; r.store && !given["filename"] {
		r.config.OutputFilename = storeFilename
	}
	return r, nil
}

var (
	storeTables  = []string{"events-table", "aggregate-heads-table"}
	fileFlags    = []string{"output", "filename", "store"}
	roleFlags    = []string{"writer-role", "worker-role", "operator-role", "reader-role"}
	workerTables = []string{"worker-nodes-table", "consumer-assignments-table", "consumer-checkpoints-table", "consumer-gap-skips-table", "leader-election-table"}
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

func bind(flags *flag.FlagSet, c *migrations.Config, r *migrations.Roles) {
	for name, value := range map[string]*string{
		"output":                     &c.OutputFolder,
		"filename":                   &c.OutputFilename,
		"worker-nodes-table":         &c.WorkerNodesTable,
		"consumer-assignments-table": &c.ConsumerAssignmentsTable,
		"consumer-checkpoints-table": &c.ConsumerCheckpointsTable,
		"consumer-gap-skips-table":   &c.ConsumerGapSkipsTable,
		"leader-election-table":      &c.LeaderElectionTable,
		"events-table":               &c.EventsTable,
		"aggregate-heads-table":      &c.AggregateHeadsTable,
		"writer-role":                &r.Writer,
		"worker-role":                &r.Worker,
		"operator-role":              &r.Operator,
		"reader-role":                &r.Reader,
	} {
		flags.StringVar(value, name, *value, "")
	}
}

func printHelp(w io.Writer) {
	d, r := migrations.DefaultConfig(), migrations.DefaultRoles()
	fmt.Fprintf(w, help, d.OutputFolder, d.OutputFilename, storeFilename,
		d.WorkerNodesTable, d.ConsumerAssignmentsTable, d.ConsumerCheckpointsTable, d.ConsumerGapSkipsTable,
		d.LeaderElectionTable, d.EventsTable, d.AggregateHeadsTable,
		r.Writer, r.Worker, r.Operator, r.Reader)
}
