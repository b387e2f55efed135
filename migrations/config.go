// Package migrations creates the tables of the worker and of the event store,
// and upgrades older ones in place: as SQL text for any migration tool, as a
// file, or directly on a database.
package migrations

import (
	"cmp"
	"fmt"

	"github.com/pgfrontier/worker/internal/derived"
	"github.com/pgfrontier/worker/internal/ident"
)

// Version is the version of the tables that this package creates. It grows with
// every change of them, and is kept in a table beside the checkpoints.
const Version = 3

// oldest is the version of the oldest programs that may run beside these tables.
// It is kept there too: so an old process that restarts after an upgrade goes on.
// It grows only when such a program would go wrong, and all must be stopped.
const oldest = 2

// Config says where the SQL goes and what the tables are called. A table is
// "table" or "schema.table"; an empty one has its default name. Without a
// schema it is found, and created, through the search path.
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
}

// DefaultConfig returns the default names, and migrations/001_worker_tables.sql
// as the file to write.
func DefaultConfig() Config {
	return Config{
		OutputFolder:             "migrations",
		OutputFilename:           "001_worker_tables.sql",
		WorkerNodesTable:         "worker_nodes",
		ConsumerAssignmentsTable: "consumer_assignments",
		ConsumerCheckpointsTable: "consumer_checkpoints",
		ConsumerGapSkipsTable:    "consumer_gap_skips",
		LeaderElectionTable:      "worker_leader_election",
		EventsTable:              "events",
		AggregateHeadsTable:      "aggregate_heads",
	}
}

// names are the validated names of all tables.
type names struct {
	nodes, assignments, checkpoints, gapSkips, leader ident.Table
	derived.Tables
	events, heads ident.Table
}

// names validates the configuration; a nil one is all defaults.
func (c *Config) names() (names, error) {
	if c == nil {
		c = &Config{}
	}
	d := DefaultConfig()
	var n names
	for _, s := range []struct {
		what, chosen, fallback string
		into                   *ident.Table
	}{
		{"WorkerNodesTable", c.WorkerNodesTable, d.WorkerNodesTable, &n.nodes},
		{"ConsumerAssignmentsTable", c.ConsumerAssignmentsTable, d.ConsumerAssignmentsTable, &n.assignments},
		{"ConsumerCheckpointsTable", c.ConsumerCheckpointsTable, d.ConsumerCheckpointsTable, &n.checkpoints},
		{"ConsumerGapSkipsTable", c.ConsumerGapSkipsTable, d.ConsumerGapSkipsTable, &n.gapSkips},
		{"LeaderElectionTable", c.LeaderElectionTable, d.LeaderElectionTable, &n.leader},
		{"EventsTable", c.EventsTable, d.EventsTable, &n.events},
		{"AggregateHeadsTable", c.AggregateHeadsTable, d.AggregateHeadsTable, &n.heads},
	} {
		name := s.chosen
		if name == "" {
			name = s.fallback
		}
		var err error
		if *s.into, err = ident.ParseTable(s.what, name); err != nil {
			return names{}, fmt.Errorf("migrations: %w", err)
		}
	}
	var err error
	if n.Tables, err = derived.From("ConsumerCheckpointsTable", n.checkpoints); err != nil {
		return names{}, fmt.Errorf("migrations: %w", err)
	}
	return n, nil
}

// storeAlone returns a table of the event store that the configuration names,
// if it names none of the worker's. In one that does not stem from
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
