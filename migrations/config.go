// Package migrations creates the tables of the worker and of the event store, and upgrades
// older ones in place. It returns them as SQL text for any migration tool, writes a file, or
// applies them to a database.
package migrations

import (
	"cmp"
	"fmt"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Config names the output file and the tables. A nil Config has all defaults.
type Config struct {
	OutputFolder   string // created if missing; empty: the current folder
	OutputFilename string // a plain file name

	// Names are the tables, as in the option WithNames of the other packages.
	Names store.Names

	// The following fields are the fields of eventsalsa/worker and pupsourcing. A field that is set
	// replaces the field of Names with the same name, without "Table".

	WorkerNodesTable         string
	ConsumerAssignmentsTable string
	ConsumerCheckpointsTable string
	ConsumerGapSkipsTable    string
	LeaderElectionTable      string
	EventsTable              string
	AggregateHeadsTable      string
}

// DefaultConfig returns migrations/001_worker_tables.sql as the output file, and empty names, which
// are the defaults.
func DefaultConfig() Config {
	return Config{OutputFolder: "migrations", OutputFilename: "001_worker_tables.sql"}
}

// names returns the names that c sets.
func (c *Config) names() store.Names {
	if c == nil {
		return store.Names{}
	}
	n := c.Names
	n.WorkerNodes = cmp.Or(c.WorkerNodesTable, n.WorkerNodes)
	n.ConsumerAssignments = cmp.Or(c.ConsumerAssignmentsTable, n.ConsumerAssignments)
	n.ConsumerCheckpoints = cmp.Or(c.ConsumerCheckpointsTable, n.ConsumerCheckpoints)
	n.ConsumerGapSkips = cmp.Or(c.ConsumerGapSkipsTable, n.ConsumerGapSkips)
	n.LeaderElection = cmp.Or(c.LeaderElectionTable, n.LeaderElection)
	n.Events = cmp.Or(c.EventsTable, n.Events)
	n.AggregateHeads = cmp.Or(c.AggregateHeadsTable, n.AggregateHeads)
	return n
}

// tables validates the names of the worker's tables.
func (c *Config) tables() (tables.Tables, error) {
	t, err := tables.Parse(c.names())
	if err != nil {
		return t, fmt.Errorf("migrations: %w", err)
	}
	return t, nil
}

// jobs validates the names of the tables of jobs.
func (c *Config) jobs() (tables.Jobs, error) {
	t, err := tables.ParseJobs(c.names())
	if err != nil {
		return t, fmt.Errorf("migrations: %w", err)
	}
	return t, nil
}

// storeAlone returns a table of the event store if the Config sets its field and names no other
// table, as a program of another library does for its event store.
func (c *Config) storeAlone() string {
	if c == nil || c.Names != (store.Names{}) ||
		c.WorkerNodesTable+c.ConsumerAssignmentsTable+c.ConsumerCheckpointsTable+c.ConsumerGapSkipsTable+c.LeaderElectionTable != "" {
		return ""
	}
	return cmp.Or(c.EventsTable, c.AggregateHeadsTable)
}
