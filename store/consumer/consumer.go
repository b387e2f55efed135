// Package consumer holds the interfaces that a worker runs: projections,
// process managers, publishers.
package consumer

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/store"
)

// Consumer handles the events of the log, one at a time and in order.
type Consumer interface {
	// Name identifies the consumer: its checkpoint and its assignment. It must
	// be stable, unique, not blank, of at most 200 bytes, and free of '#' and of
	// control characters.
	Name() string

	// Handle applies one event. What it writes through tx commits together
	// with the checkpoint, or not at all; anything else it does may happen
	// again after a failure. An error rolls the batch back.
	//
	// Every statement on this database belongs into tx, none onto the pool.
	// What goes through the pool commits by itself: it stays when the batch
	// rolls back, and happens again with the next try. It waits for locks that
	// tx holds, which PostgreSQL cannot see as a deadlock, and for a connection
	// that a small pool may not have: until BatchTimeout, each time.
	//
	// It must neither commit nor roll back tx, nor by SQL: that would commit
	// the checkpoint of events that were not handled. The worker sets the
	// checkpoint back and ends. PREPARE TRANSACTION ends tx, too: nobody can run
	// the consumer until somebody sends ROLLBACK PREPARED.
	//
	// It must release each savepoint that it sets, or roll back to it, before it
	// returns. All events of a batch share tx: a ROLLBACK TO a savepoint of an
	// earlier event undoes what was handled since. Nobody notices that, so those
	// events are lost.
	Handle(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error
}

// ScopedConsumer is a Consumer of some aggregate types only.
type ScopedConsumer interface {
	Consumer
	// AggregateTypes names the types to be delivered; none means all. It is
	// asked once, when the worker starts.
	AggregateTypes() []string
}

// Starter is a Consumer that begins elsewhere than at the log's beginning.
type Starter interface {
	Consumer
	// StartAt says where a consumer that has never run begins. A consumer
	// that has run goes on from its checkpoint.
	StartAt() Start
}

// Start is where a consumer that has never run begins. Its zero value is the
// beginning of the log.
type Start struct {
	head     bool
	position int64
}

// AtBeginning begins with the first event.
func AtBeginning() Start { return Start{} }

// AtHead begins with the events that commit after the consumer was first
// registered.
func AtHead() Start { return Start{head: true} }

// After begins with the first event above position.
func After(position int64) Start { return Start{position: position} }

// Position returns the position after which to begin; head is true for AtHead.
func (s Start) Position() (after int64, head bool) { return s.position, s.head }
