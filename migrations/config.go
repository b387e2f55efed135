// Package migrations creates the tables of the worker and of the event store, and upgrades
// older ones in place. It returns them as SQL text for any migration tool, writes a file, or
// applies them to a database.
package migrations

import (
	"cmp"
	"fmt"

	"github.com/pgfrontier/worker/internal/tables"
)

// Version is the version of the tables that this package creates. It grows with every change of
// the tables. A table beside the checkpoints records it.
const Version = 6

// oldest is the version of the oldest programs that may run beside these tables. The database
// records it, too, so an older process can restart after an upgrade. oldest grows only if such
// a program would go wrong. Then all older programs must be stopped before the upgrade.
const oldest = 2

// Config names the output file and the tables. A name is "table" or "schema.table"; an empty
// one is the default. A table without a schema is found, and created, through the search path.
type Config struct {
	OutputFolder   string // created if missing; empty: the current folder
	OutputFilename string // a plain file name

	WorkerNodesTable         string // default "worker_nodes"
	ConsumerAssignmentsTable string // default "consumer_assignments"
	ConsumerCheckpointsTable string // default "consumer_checkpoints"; tables with the suffixes "_token", "_settled", "_changes" and "_schema" are created beside it; in "consumer_dead_letters" and "consumer_operations" the suffix replaces "_checkpoints"
	ConsumerGapSkipsTable    string // default "consumer_gap_skips"
	LeaderElectionTable      string // default "worker_leader_election"

	EventsTable         string // default "events"
	AggregateHeadsTable string // default "aggregate_heads"

	JobsTable string // default "jobs"; tables with the suffixes "_history", "_attempts" and others are created beside it
}

// DefaultConfig returns the default names, and migrations/001_worker_tables.sql as the output file.
func DefaultConfig() Config {
	d := tables.Default
	return Config{
		OutputFolder:             "migrations",
		OutputFilename:           "001_worker_tables.sql",
		WorkerNodesTable:         d.WorkerNodes,
		ConsumerAssignmentsTable: d.ConsumerAssignments,
		ConsumerCheckpointsTable: d.ConsumerCheckpoints,
		ConsumerGapSkipsTable:    d.ConsumerGapSkips,
		LeaderElectionTable:      d.LeaderElection,
		EventsTable:              d.Events,
		AggregateHeadsTable:      d.AggregateHeads,
		JobsTable:                tables.DefaultJobs,
	}
}

// tables validates the names; a nil Config is all defaults.
func (c *Config) tables() (tables.Tables, error) {
	if c == nil {
		c = &Config{}
	}
	t, err := tables.Parse(tables.Names{
		WorkerNodes:         c.WorkerNodesTable,
		ConsumerAssignments: c.ConsumerAssignmentsTable,
		ConsumerCheckpoints: c.ConsumerCheckpointsTable,
		ConsumerGapSkips:    c.ConsumerGapSkipsTable,
		LeaderElection:      c.LeaderElectionTable,
		Events:              c.EventsTable,
		AggregateHeads:      c.AggregateHeadsTable,
	}.OrDefault(), "")
	if err != nil {
		return t, fmt.Errorf("migrations: %w", err)
	}
	return t, nil
}

// storeAlone returns a configured table of the event store if the Config names no table of the
// worker. Unless DefaultConfig made the Config, a name counts also if it equals the default.
func (c *Config) storeAlone() string {
	d := DefaultConfig()
	if c == nil {
		c = &d
	}
	switch c.ofWorker() {
	case d.ofWorker():
		if c.EventsTable != d.EventsTable {
			return c.EventsTable
		}
		if c.AggregateHeadsTable != d.AggregateHeadsTable {
			return c.AggregateHeadsTable
		}
	case [5]string{}:
		return cmp.Or(c.EventsTable, c.AggregateHeadsTable)
	}
	return ""
}

func (c *Config) ofWorker() [5]string {
	return [5]string{c.WorkerNodesTable, c.ConsumerAssignmentsTable, c.ConsumerCheckpointsTable, c.ConsumerGapSkipsTable, c.LeaderElectionTable}
}
