// Package consumer has the interfaces that applications implement and a worker
// runs: projections, process managers, publishers.
package consumer

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/store"
)

// Consumer handles the events of the log, one at a time and in order.
type Consumer interface {
	// Name identifies the consumer's checkpoint and assignment. It must be
	// stable, unique, not blank, at most 200 bytes long, and free of '#' and
	// control characters.
	Name() string

	// Handle applies one event. What it writes through tx commits together
	// with the checkpoint, or not at all. Anything else that it does may
	// happen again after a failure. An error rolls the batch back.
	//
	// Every statement on this database goes through tx, none through the pool.
	// A statement on the pool commits by itself: it stays when the batch rolls
	// back, and runs again with the next attempt. It waits until BatchTimeout,
	// in each attempt, for locks that tx holds, which PostgreSQL cannot see as
	// a deadlock, and for a connection that a small pool may not have.
	//
	// Handle must not commit tx or roll it back, also not by SQL: that would
	// commit the checkpoint of events that were not handled. The worker sets
	// the checkpoint back and ends. PREPARE TRANSACTION ends tx, too. Then
	// nobody can run the consumer until somebody sends ROLLBACK PREPARED.
	//
	// Handle must release each savepoint that it sets, or roll back to it,
	// before it returns. All events of a batch share tx: a ROLLBACK TO a
	// savepoint of an earlier event undoes what was handled since. Nobody
	// notices that, so those events are lost.
	Handle(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error
}

// ScopedConsumer is a Consumer of some aggregate types only.
type ScopedConsumer interface {
	Consumer
	// AggregateTypes returns the types to be delivered; an empty list means
	// all. The worker asks once, at its start.
	//
	// The checkpoint records the types. While workers run whose builds name different
	// ones, only those with the most run the consumer: once a worker has started that
	// names a type, no other build passes its events. Those at or below the checkpoint of
	// that time are not delivered; ops.Operator.ReplayTypes delivers them.
	AggregateTypes() []string
}

// Versioned is a Consumer whose code has a number. While workers run whose builds differ in
// it, those with the highest run the consumer, and the others wait: a change of what a
// decoder makes of events, say, is not undone in turns. Of builds with the same number, that
// with more aggregate types runs it, see [ScopedConsumer].
type Versioned interface {
	Consumer
	// Version returns the number of the code, 0 or above. A Consumer without it has 0.
	Version() int
}

// Forgetter is a Consumer that can take back what it keeps of one aggregate.
type Forgetter interface {
	Consumer
	// Forget deletes through tx what the consumer has written for the aggregate. The
	// worker calls it before the first event of an aggregate that an operator replays, in
	// the same transaction. The rules of Handle hold, and an error counts as its.
	Forget(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string) error
}

// Starter is a Consumer that does not begin at the log's beginning.
type Starter interface {
	Consumer
	// StartAt returns where a consumer begins that has never run. A consumer
	// that has run continues from its checkpoint.
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
// registered. It is registered when all transactions have ended that had drawn a
// position below the head: until then it waits, and after StaleGapThreshold the
// worker's Status and observer name these transactions.
func AtHead() Start { return Start{head: true} }

// After begins with the first event above position.
func After(position int64) Start { return Start{position: position} }

// Position returns the position after which to begin; head is true for AtHead.
func (s Start) Position() (after int64, head bool) { return s.position, s.head }
