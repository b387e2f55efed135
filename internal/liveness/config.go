package liveness

import (
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Config is what a Registry needs.
type Config struct {
	DB pgdriver.Pool
	ID uuid.UUID // of this worker

	Nodes   ident.Table // the rows of the workers, see package migrations
	Stopped ident.Table // the workers whose rows are gone, likewise
	Token   ident.Table // see package incarnation
	Column  string      // of Nodes, for Names
	Names   []string    // of what this worker has code for; another ID for other names

	// Details is JSON of what else this worker says of itself, in a column of
	// Nodes. Another ID for other details. An empty column: it says nothing.
	DetailsColumn string
	Details       string

	Hostname string // of this machine, for people; empty: as the system says

	HeartbeatInterval time.Duration // between two signs of life
	HeartbeatTimeout  time.Duration // silence after which this worker counts as dead, more than HeartbeatInterval
	// Lock makes the worker hold a session lock. It takes a connection that is a
	// session of the server.
	Lock bool

	// Status is called for each heartbeat and returns JSON for the people who
	// look at the table of workers. May be nil.
	Status func() ([]byte, error)
	// Incarnation is an SQL expression that differs from server to server, such as
	// that of package incarnation. Elsewhere is called with its value, once for each heartbeat,
	// and reports whether the worker works on another server. May be empty and nil.
	Incarnation string
	Elsewhere   func(incarnation string) bool
	// OnTaskFailed is called when something failed that others make up for. May
	// be nil.
	OnTaskFailed func(task string, err error)
}

func (c Config) taskFailed(task string, err error) {
	if c.OnTaskFailed != nil {
		c.OnTaskFailed(task, err)
	}
}

// TimeLimit bounds a statement, so that a half-open connection is given up
// well before this worker counts as dead.
func (c Config) TimeLimit() time.Duration {
	return min(max(c.HeartbeatTimeout/3, time.Second), 10*time.Second)
}

// Grace is the age of a heartbeat by which a worker that lives, and has lost
// its connection, has another one and sends the next.
func (c Config) Grace() time.Duration {
	return min(c.HeartbeatInterval+c.TimeLimit(), c.HeartbeatTimeout)
}
