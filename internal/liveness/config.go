package liveness

import (
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Config holds the dependencies and settings of a Registry.
type Config struct {
	DB pgdriver.Pool
	ID uuid.UUID // of this worker

	Nodes   ident.Table // the rows of the workers, see package migrations
	Stopped ident.Table // the rows of stopped workers, see package migrations
	Token   ident.Table // see package incarnation
	Column  string      // of Nodes, holds Names
	Names   []string    // the names that this worker has code for; constant for an ID

	// Details is JSON with further facts about this worker, in the column DetailsColumn of
	// Nodes. Details are constant for an ID. If DetailsColumn is empty, there are no details.
	DetailsColumn string
	Details       string

	Hostname string // of this machine, for display; empty: the system's

	HeartbeatInterval time.Duration // between two heartbeats
	HeartbeatTimeout  time.Duration // this worker is dead when its heartbeat is older; must exceed HeartbeatInterval
	// Lock makes the worker hold a session lock. It requires a connection that is a session of
	// the server.
	Lock bool

	// Status is called for each heartbeat. It returns JSON for the people who read the table
	// of workers. May be nil.
	Status func() ([]byte, error)
	// Incarnation is an SQL expression that differs from server to server, such as the
	// expression of package incarnation. FailedOver is called with its value once for each
	// heartbeat. FailedOver reports whether the worker works on another server. May be empty
	// and nil.
	Incarnation string
	FailedOver  func(incarnation string) bool
	// OnTaskFailed is called after a failure that the worker survives. May be nil.
	OnTaskFailed func(task string, err error)
}

func (c Config) taskFailed(task string, err error) {
	if c.OnTaskFailed != nil {
		c.OnTaskFailed(task, err)
	}
}

// TimeLimit returns the time limit of a statement. With it, the worker gives up a half-open
// connection well before the worker counts as dead.
func (c Config) TimeLimit() time.Duration {
	return min(max(c.HeartbeatTimeout/3, time.Second), 10*time.Second)
}

// Grace returns an age of the last heartbeat. By then, a live worker that has lost its
// connection has another one and has sent a heartbeat.
func (c Config) Grace() time.Duration {
	return min(c.HeartbeatInterval+c.TimeLimit(), c.HeartbeatTimeout)
}
