// Package consumer defines the interfaces that applications implement and a worker runs:
// projections, process managers, publishers.
package consumer

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker/store"
)

// Consumer handles the events of the log, one at a time and in order.
type Consumer interface {
	// Name identifies the consumer's checkpoint and assignment. The name must be stable,
	// unique, not blank, at most 200 bytes long, and free of '#' and control characters.
	Name() string

	// Handle applies one event. All writes through tx commit together with the checkpoint, or not at
	// all. All other effects of Handle may happen again after a failure. An error rolls the batch
	// back.
	//
	// Execute all statements on this database through tx, none through the pool. A statement on the
	// pool commits by itself. Its writes stay when the batch rolls back, and the next attempt
	// executes the statement again. Such a statement may also wait until BatchTimeout, in any
	// attempt. It waits for locks that tx holds, and PostgreSQL cannot detect this deadlock. It
	// also waits for a connection if the pool is small.
	//
	// Handle must not commit tx or roll tx back, neither by a method nor by SQL. A commit would
	// commit the checkpoint of events that were not handled. The worker then sets the checkpoint
	// back and stops. PREPARE TRANSACTION ends tx, too. No worker can run the consumer until the
	// prepared transaction has been rolled back with ROLLBACK PREPARED.
	//
	// Handle must release the savepoints that it sets, or roll back to them, before Handle returns.
	// All events of a batch share tx. A ROLLBACK TO a savepoint of an earlier event undoes all
	// events handled since. The worker cannot detect this rollback, so these events are lost.
	Handle(ctx context.Context, tx *sql.Tx, event store.PersistedEvent) error
}

// ScopedConsumer is a Consumer of some aggregate types only.
type ScopedConsumer interface {
	Consumer
	// AggregateTypes returns the aggregate types to deliver. An empty list means all types. The
	// worker calls AggregateTypes once, at its start.
	//
	// The checkpoint records the types. The workers' builds may name different types. Then only the
	// workers whose build names the most types run the consumer. Once a worker that names a new type
	// has started, no other build passes events of the new type. Events of the new type at or below
	// the checkpoint of that time are not delivered. ops.Operator.ReplayTypes delivers them.
	AggregateTypes() []string
}

// Versioned is a Consumer whose code has a version number. The workers' builds may have
// different versions. Then only the workers with the highest version run the consumer, and the
// others wait. So builds with different decoders, for example, do not overwrite each other's
// results. Among builds of the same version, the build with more aggregate types runs the
// consumer, see [ScopedConsumer].
type Versioned interface {
	Consumer
	// Version returns the version of the code, 0 or above. A Consumer without Version has version 0.
	Version() int
}

// Projected is a Consumer that is one version of a projection. The versions are consumers with
// names of their own. A version that begins while another one has the projection's effects begins as
// a shadow, see ops.Operator.Shadow, until ops.Operator.Switch exchanges the two.
// worker.Worker.WaitFor takes the projection's name, and waits for the version that is in use.
type Projected interface {
	Consumer
	// Projection returns the name of the projection, by the rules of Name. It may be the name of a
	// version. Empty means that the consumer has no other versions.
	//
	// The checkpoint records the name. Among builds of the same version and types, one with a
	// projection runs the consumer, see [Versioned].
	Projection() string
}

// Forgetter is a Consumer that can delete its rows of one aggregate.
type Forgetter interface {
	Consumer
	// Forget deletes through tx all rows that the consumer has written for the aggregate. When
	// an operator replays an aggregate, the worker calls Forget before the first event, in the
	// same transaction. The rules of Handle apply to Forget. An error of Forget counts as an
	// error of Handle.
	Forget(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string) error
}

// Starter is a Consumer that does not start at the beginning of the log.
type Starter interface {
	Consumer
	// StartAt returns the position at which a new consumer starts. A consumer that has run
	// continues from its checkpoint.
	StartAt() Start
}

// Start is the position at which a new consumer starts. The zero value is the beginning of the log.
type Start struct {
	head     bool
	position int64
}

// AtBeginning starts with the first event.
func AtBeginning() Start { return Start{} }

// AtHead starts with the events that commit after the consumer was first registered. The worker
// registers the consumer once all transactions that had drawn a position below the head have
// ended. After StaleGapThreshold, the worker's Status and observer name the transactions that
// are still open.
func AtHead() Start { return Start{head: true} }

// After starts with the first event above position.
func After(position int64) Start { return Start{position: position} }

// Position returns the position after which the consumer starts. head reports whether the start
// is AtHead.
func (s Start) Position() (after int64, head bool) { return s.position, s.head }
