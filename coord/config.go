package coord

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/scope"
)

// LeaderStrategy is how workers agree on who assigns the units.
type LeaderStrategy int

const (
	// Advisory holds session advisory locks on a connection of its own. The
	// others notice at once that a worker's process has ended.
	Advisory LeaderStrategy = iota
	// Lease holds a row for a limited time. It needs no session, so it works
	// behind a transaction-pooling proxy, and knows heartbeats only.
	Lease
)

// Config is what a Coordinator needs.
type Config struct {
	DB    *sql.DB
	ID    uuid.UUID // of this worker
	Units []string  // what this worker has code for; another ID for other units
	// Wishes are those for units that are to be handled in partitions. Another ID
	// for other wishes.
	Wishes map[string]Wish
	// Scopes are what the code of units selects of the log: of workers that differ, those
	// with the greatest run the unit. Another ID for other scopes.
	Scopes map[string]scope.Scope

	Nodes, Leader ident.Table // see package migrations
	Stopped       ident.Table // likewise
	Changes       ident.Table // likewise, see package changes
	Token         ident.Table // of the server's incarnation
	Column        string      // of Nodes, for Units

	// Assignments and Checkpoints are both named, or neither is: then there is a
	// leader, who knows who lives, and nothing is assigned. Nodes has a column for
	// Wishes then.
	Assignments, Checkpoints ident.Table

	Hostname string // of this machine, for people; empty: as the system says

	HeartbeatInterval time.Duration // between two signs of life
	HeartbeatTimeout  time.Duration // silence after which a worker counts as dead, more than HeartbeatInterval
	RebalanceInterval time.Duration // the leader looks through all assignments at least so often
	Strategy          LeaderStrategy
	Sticky            bool // a rebalance moves as few units as it can, see Assign

	// Status is called for each heartbeat and returns JSON for the people who
	// look at the table of workers. May be nil.
	Status func() ([]byte, error)
	// Incarnation is an SQL expression that differs from server to server, such as
	// that of package incarnation. Elsewhere is called with its value, once for each heartbeat,
	// and reports whether the units work on another server. May be empty and nil.
	Incarnation string
	Elsewhere   func(incarnation string) bool
	// OnMembers is called on the leader at each look, with the workers that have
	// a row, and those of them that live. May be nil.
	OnMembers func(rows, alive []uuid.UUID)
	// OnLeader is called when this worker gains or loses the leadership.
	// May be nil.
	OnLeader func(leads bool)
	// OnFailure is called for each failed try of Run, OnBack when one works after
	// failed ones. May be nil.
	OnFailure func(error)
	OnBack    func()
	// OnOwned is called when a unit is run again that OnUnowned has told of. May
	// be nil.
	OnOwned func(unit string)
	// OnUnowned is called on the leader, once for each unit that nobody runs,
	// with why. May be nil.
	OnUnowned func(unit, reason string)
	// OnAssigned is called on the leader when it has written so many changes of
	// assignments, for so many live workers. May be nil.
	OnAssigned func(workers, changes int)
	// OnDrain is called at each look that shows that an operator has asked this worker to
	// drain. May be nil.
	OnDrain func()
	// OnReregister is called when this worker's row is gone and it registers
	// again. May be nil.
	OnReregister func()
	// OnStaleRemoved is called when so many rows of dead workers were removed.
	// May be nil.
	OnStaleRemoved func(rows int)
	// OnTaskFailed is called when something failed that others make up for: the
	// status in the table, the announcement of a change, the removal of dead
	// workers' rows. May be nil.
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
		return errors.New("coord: Config.DB is nil, it takes a *sql.DB")
	case c.ID == uuid.Nil:
		return errors.New("coord: Config.ID is the nil UUID, every worker needs its own")
	case c.Nodes.Name == "" || c.Stopped.Name == "" || c.Leader.Name == "" || c.Changes.Name == "" || c.Token.Name == "" || c.Column == "":
		return errors.New("coord: Config.Nodes, Stopped, Leader, Changes and Token must name tables, and Config.Column a column")
	case (c.Assignments.Name == "") != (c.Checkpoints.Name == ""):
		return errors.New("coord: Config.Assignments and Config.Checkpoints name tables both or neither")
	case c.HeartbeatInterval <= 0 || c.RebalanceInterval <= 0:
		return errors.New("coord: Config.HeartbeatInterval and Config.RebalanceInterval must be above 0")
	case c.HeartbeatTimeout <= c.HeartbeatInterval:
		return fmt.Errorf("coord: Config.HeartbeatTimeout is %v, it must be above Config.HeartbeatInterval, %v", c.HeartbeatTimeout, c.HeartbeatInterval)
	case c.Strategy != Advisory && c.Strategy != Lease:
		return fmt.Errorf("coord: Config.Strategy is %d, it takes Advisory or Lease", c.Strategy)
	}
	return nil
}

// assigns reports whether there is something to assign.
func (c Config) assigns() bool { return c.Assignments.Name != "" }

// liveness is what package liveness needs to know.
func (c Config) liveness() liveness.Config {
	l := liveness.Config{
		DB: pgdriver.Pool{DB: c.DB}, ID: c.ID, Nodes: c.Nodes, Stopped: c.Stopped, Token: c.Token, Column: c.Column, Names: c.Units, Hostname: c.Hostname,
		HeartbeatInterval: c.HeartbeatInterval, HeartbeatTimeout: c.HeartbeatTimeout, Lock: c.Strategy == Advisory,
		Status: c.Status, Incarnation: c.Incarnation, Elsewhere: c.Elsewhere, OnTaskFailed: c.OnTaskFailed,
	}
	if c.assigns() {
		l.DetailsColumn, l.Details = "partitions", detailsText(c.Wishes, c.Scopes)
	}
	return l
}
