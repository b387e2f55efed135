package coord

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/scope"
)

// Config holds the dependencies and settings of a Coordinator.
type Config struct {
	DB    *sql.DB
	ID    uuid.UUID // of this worker
	Units []string  // the units that this worker has code for; constant for an ID
	// Demands are the partition demands for units. They are constant for an ID.
	Demands map[string]partition.Demand
	// Scopes are the scopes of the units' code. If the scopes of workers differ, the workers
	// with the greatest scope run the unit. Scopes are constant for an ID.
	Scopes map[string]scope.Scope

	Nodes, Leader ident.Table // see package migrations
	Stopped       ident.Table // see package migrations
	Changes       ident.Table // see package changes
	Token         ident.Table // with the incarnation of the server
	Column        string      // of Nodes, holds Units

	// Assignments and Checkpoints name tables, or neither does. Without them, the coordinator
	// elects a leader and knows the live workers, but assigns nothing. With them, Nodes has a
	// column for Demands.
	Assignments, Checkpoints ident.Table

	Hostname string // of this machine, for display; empty: the system's

	HeartbeatInterval time.Duration // between two heartbeats
	HeartbeatTimeout  time.Duration // a worker is dead when its heartbeat is older; must exceed HeartbeatInterval
	RebalanceInterval time.Duration // the leader checks all assignments at least this often
	Sticky            bool          // a rebalance moves as few units as possible
	// Lease makes the leader hold a row for a limited time. A lease needs no session, so it works
	// behind a transaction-pooling proxy. The other workers detect the end of a worker by its
	// heartbeats only. Without Lease, workers hold session advisory locks on a separate connection.
	// The other workers then detect the end of a worker's process at once.
	Lease bool

	// Status is called once per heartbeat. It returns JSON for the people who read the table
	// of workers. May be nil.
	Status func() ([]byte, error)
	// Incarnation is an SQL expression that differs from server to server, such as the
	// expression of package incarnation. FailedOver is called with its value once for each
	// heartbeat. FailedOver reports whether the units work on another server. May be empty and
	// nil.
	Incarnation string
	FailedOver  func(incarnation string) bool
	// OnMembers is called on the leader at its polls. rows are the workers that have a
	// row, alive the live ones among them. May be nil.
	OnMembers func(rows, alive []uuid.UUID)
	// OnLeader is called when this worker gains or loses the leadership. May be nil.
	OnLeader func(leads bool)
	// OnFailure is called after each failed attempt of Run. OnBack is called when an attempt
	// works after failed ones. May be nil.
	OnFailure func(error)
	OnBack    func()
	// OnOwned is called when a unit that OnUnowned has reported runs again. May be nil.
	OnOwned func(unit string)
	// OnUnowned is called on the leader, once for each unit that no worker runs, with the
	// reason. May be nil.
	OnUnowned func(unit, reason string)
	// OnAssigned is called on the leader after it has written assignments. workers counts the
	// live workers, changes the written changes. May be nil.
	OnAssigned func(workers, changes int)
	// OnDrain is called at the polls after an operator has asked this worker to drain. May be nil.
	OnDrain func()
	// OnReregister is called when this worker's row is gone and the worker registers again.
	// May be nil.
	OnReregister func()
	// OnStaleRemoved is called after rows of dead workers were removed, with their number. May
	// be nil.
	OnStaleRemoved func(rows int)
	// OnTaskFailed is called after a failure that the coordination survives. Such tasks are
	// the status in the table, the announcement of a change, and the removal of dead workers'
	// rows. May be nil.
	OnTaskFailed func(task string, err error)
}

func (c Config) taskFailed(task string, err error) {
	if c.OnTaskFailed != nil {
		c.OnTaskFailed(task, err)
	}
}

func (c Config) validate() error {
	switch {
	case c.DB == nil:
		return errors.New("coord: Config.DB is nil: set it to a *sql.DB")
	case c.ID == uuid.Nil:
		return errors.New("coord: Config.ID is the nil UUID: give each worker its own ID")
	case c.Nodes.Name == "" || c.Stopped.Name == "" || c.Leader.Name == "" || c.Changes.Name == "" || c.Token.Name == "" || c.Column == "":
		return errors.New("coord: Config.Nodes, Stopped, Leader, Changes and Token must name tables, and Config.Column a column")
	case (c.Assignments.Name == "") != (c.Checkpoints.Name == ""):
		return errors.New("coord: Config.Assignments and Config.Checkpoints must both name a table, or neither")
	case c.HeartbeatInterval <= 0 || c.RebalanceInterval <= 0:
		return errors.New("coord: Config.HeartbeatInterval and Config.RebalanceInterval must be above 0")
	case c.HeartbeatTimeout <= c.HeartbeatInterval:
		return fmt.Errorf("coord: Config.HeartbeatTimeout is %v: it must be above Config.HeartbeatInterval, %v", c.HeartbeatTimeout, c.HeartbeatInterval)
	}
	return nil
}

// assigns reports whether the coordinator assigns units.
func (c Config) assigns() bool { return c.Assignments.Name != "" }

// liveness returns the configuration of package liveness.
func (c Config) liveness() liveness.Config {
	l := liveness.Config{
		DB: pgdriver.Pool{DB: c.DB}, ID: c.ID, Nodes: c.Nodes, Stopped: c.Stopped, Token: c.Token, Column: c.Column, Names: c.Units, Hostname: c.Hostname,
		HeartbeatInterval: c.HeartbeatInterval, HeartbeatTimeout: c.HeartbeatTimeout, Lock: !c.Lease,
		Status: c.Status, Incarnation: c.Incarnation, FailedOver: c.FailedOver, OnTaskFailed: c.OnTaskFailed,
	}
	if c.assigns() {
		l.DetailsColumn, l.Details = "partitions", detailsText(c.Demands, c.Scopes)
	}
	return l
}
