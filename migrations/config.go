// Package migrations creates the tables of the worker and of the event store,
// and upgrades older ones in place. It gives them as SQL text for any
// migration tool, writes them as a file, or applies them to a database.
package migrations

import (
	"cmp"
	"fmt"

	"github.com/pgfrontier/worker/internal/tables"
)

// Version is the version of the tables that this package creates. It grows
// with every change of them. A table beside the checkpoints records it.
const Version = 6

// oldest is the version of the oldest programs that may run beside these tables.
// It is kept there too: so an old process that restarts after an upgrade goes on.
// It grows only when such a program would go wrong, and all must be stopped.
const oldest = 2

// Config says where the SQL goes and how the tables are named. A name is
// "table" or "schema.table"; an empty one is the default. A table without a
// schema is found, and created, through the search path.
type Config struct {
	OutputFolder   string // created if need be; empty: the current one
	OutputFilename string // a plain file name

	WorkerNodesTable         string // default "worker_nodes"
	ConsumerAssignmentsTable string // default "consumer_assignments"
	ConsumerCheckpointsTable string // default "consumer_checkpoints"; "_token", "_settled", "_changes" and "_schema" are put beside it; "consumer_dead_letters" and "consumer_operations" replace its "_checkpoints"
	ConsumerGapSkipsTable    string // default "consumer_gap_skips"
	LeaderElectionTable      string // default "worker_leader_election"

	EventsTable         string // default "events"
	AggregateHeadsTable string // default "aggregate_heads"

	JobsTable string // default "jobs"; "_history", "_attempts" and others are put beside it
}

// DefaultConfig returns the default names, and migrations/001_worker_tables.sql
// as the file to write.
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

// tables validates the configuration; a nil one is all defaults.
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

// storeAlone returns a table of the event store that the configuration names,
// if it names none of the worker's. In a Config that was not made by
// DefaultConfig, a default that is spelled out is a name too.
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
