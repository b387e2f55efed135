// Command migrate-gen writes the SQL that creates and upgrades the tables of
// the worker, or with -store those of the event store, as a file for any
// migration tool.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

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

Give the worker the same names, with worker.WithWorkerNodesTable and so on. An
existing file is replaced only if it is an earlier one of the same kind.

Exit status: 0 written, 2 wrong usage or the file could not be written.
`

// storeFilename sorts before the worker's: the event log comes first.
const storeFilename = "000_event_store_tables.sql"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fail := func(err error) int {
		fmt.Fprintf(stderr, "migrate-gen: %v\n(migrate-gen -h shows how it is used)\n", err)
		return 2
	}
	config, store, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		printHelp(stdout)
		return 0
	case err != nil:
		return fail(err)
	}
	generate, written := migrations.GeneratePostgres, "the worker's tables; -store writes the event store's"
	if store {
		generate, written = migrations.GenerateStore, "the event store's tables"
	}
	if err := generate(&config); err != nil {
		return fail(err)
	}
	fmt.Fprintf(stderr, "migrate-gen: %s\n", written)
	fmt.Fprintln(stdout, filepath.Join(config.OutputFolder, config.OutputFilename))
	return 0
}

// parse returns what to generate: the tables of the store, or the worker's.
func parse(args []string) (c migrations.Config, store bool, err error) {
	c = migrations.DefaultConfig()
	flags := flag.NewFlagSet("migrate-gen", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints
	bind(flags, &c)
	flags.BoolVar(&store, "store", false, "")
	if err := flags.Parse(args); err != nil {
		return c, false, err
	}
	if flags.NArg() > 0 {
		return c, false, fmt.Errorf("unexpected argument %q: everything is given by flags", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	ofStore, ofWorker := firstOf(given, storeTables), firstOf(given, workerTables)
	if ofStore != "" && ofWorker != "" && !store {
		return c, false, fmt.Errorf("-%s names a table of the event store, -%s one of the worker's, and a file holds one of the two: run it twice, for the event store's with -store", ofStore, ofWorker)
	}
	if store = store || ofStore != ""; store && !given["filename"] {
		c.OutputFilename = storeFilename
	}
	return c, store, nil
}

var (
	storeTables  = []string{"events-table", "aggregate-heads-table"}
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

func bind(flags *flag.FlagSet, c *migrations.Config) {
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
	} {
		flags.StringVar(value, name, *value, "")
	}
}

func printHelp(w io.Writer) {
	d := migrations.DefaultConfig()
	fmt.Fprintf(w, help, d.OutputFolder, d.OutputFilename, storeFilename,
		d.WorkerNodesTable, d.ConsumerAssignmentsTable, d.ConsumerCheckpointsTable, d.ConsumerGapSkipsTable,
		d.LeaderElectionTable, d.EventsTable, d.AggregateHeadsTable)
}
