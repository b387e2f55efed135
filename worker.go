package worker

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/consume"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Worker runs its share of the consumers of a log. It starts once.
type Worker struct{ engine *consume.Worker }

// New makes a worker. It does nothing yet: Start checks what it was given.
//
// db is the database of the log, the checkpoints and the handlers' effects.
// eventStore is usually a *postgres.Store of package store/postgres.
func New(db *sql.DB, eventStore store.Log, consumers []consumer.Consumer, opts ...Option) *Worker {
	return &Worker{consume.New(db, eventStore, consumers, configOf(opts))}
}

// configOf returns the defaults with options.
func configOf(opts []Option) Config {
	c := DefaultConfig()
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	return c
}

// ID identifies this worker in the tables.
func (w *Worker) ID() uuid.UUID { return w.engine.ID() }

// Start runs the worker until ctx ends, Stop is called, or an error that no
// retry can mend; the first two are a clean stop and return nil. It begins by
// checking the configuration and the database, and starts nothing if it finds
// fault. While the database cannot be reached, it tries again, for ever or for
// [WithRetryLimit], and tells TaskFailed. When it returns, nothing of the worker is running any more.
//
// Start creates no tables. A program that is to create and upgrade them calls [migrations.Apply]
// first, as the example does.
//
// Close db after that, not before. A worker that finds it closed finishes the batches in
// hand, and returns [ErrPoolClosed].
//
// A stop in an outage may return [ErrOutcomeUnknown]: a batch has failed, and the
// database does not answer what its handler did.
//
// At a stop no new batch begins, those in hand finish (each bounded by
// BatchTimeout, all by ShutdownTimeout), and each consumer is handed back to the
// other workers when its own batch has ended.
//
// A handler that ignores the end of its context cannot be ended. A few seconds
// after that bound Start returns without it, with [ErrHandlerOverdue] and the
// consumer's name. Its transaction is rolled back; its goroutine is all that
// still runs, until the handler returns.
//
// An operator may drain the worker, see DrainWorker of package ops. Then it stops in the
// same way, and Start goes on waiting, in [StateDrained], until ctx ends or Stop is called: a
// process that ended would be started again, and take work again.
func (w *Worker) Start(ctx context.Context) error { return w.engine.Start(ctx) }

// Stop asks the worker to finish the batches in hand and end. It returns at
// once, and no batch begins from then on, save one that is just beginning; Start waits. It
// may be called at any time, any number of times, also from a handler.
func (w *Worker) Stop() { w.engine.Stop() }

// Status returns a snapshot of the worker. It may be called at any time.
func (w *Worker) Status() Status { return w.engine.Status() }

// Live returns nil unless only a new process helps: Start has returned, or one of
// the worker's loops hangs, which the error names. The worker mends everything else by
// itself, as soon as it can. A worker that an operator has drained is live. Live never
// asks the database. Package health serves it to an orchestrator.
func (w *Worker) Live() error { return w.engine.Live() }

// Ready returns why the worker does not do all of its work, nothing if it does. It
// asks the database how far the log is and how old the events are that its consumers
// have not handled: in two statements, each bounded by 5s and by ctx. Each error
// is one line, with the remedy. Package health serves them to an orchestrator.
//
// maxAge is for how long a consumer that such an event waits for may not move, and Safe
// while the head of the log is above it. It must be longer than the StaleGapThreshold,
// for which an open transaction may hold the consumers back. A consumer that is paused
// does not count, nor does one that is late but moves: it catches up.
func (w *Worker) Ready(ctx context.Context, maxAge time.Duration) []error {
	return w.engine.Ready(ctx, maxAge)
}

// WaitFor waits until a consumer has handled the event at a position, wherever
// that consumer runs: so that what was just appended can be read from its
// projection. It looks when the consumer gets there in this worker. Where this
// worker and the one that runs the consumer listen (DispatcherStrategyNotify),
// it asks that one, once, to say so. The parts of a consumer in partitions then commit at once
// that they have passed the position. Without being asked, they take up to 25 ms for each
// partition. Besides, all who wait for a consumer look together every
// DispatcherInterval, from when the worker has started. The error is ErrDeadLettered if the event cannot
// be handled, ErrNoConsumer if there is no such consumer, and tells how far the
// consumer is if ctx ends first. A worker that
// ended before it could begin waits for nothing. A process without a worker has a [Waiter].
func (w *Worker) WaitFor(ctx context.Context, consumer string, position int64) error {
	return w.engine.WaitFor(ctx, consumer, position)
}

// Waiter waits for consumers in a process that runs none of them, for example one that serves
// HTTP. It needs no Start and no Stop. Any number of goroutines may use it.
type Waiter struct{ engine *consume.Waiter }

// NewWaiter makes a Waiter. It does nothing yet: WaitFor checks what it was given.
//
// db is the database that the projections are read from. It may be a replica, but not several
// behind one address: WaitFor then waits until the checkpoint has arrived there, which came with
// what the handlers wrote. The role needs SELECT on the tables of the workers, and nothing else.
//
// Of the options, the names of the tables and [WithDispatcherInterval] count, as the
// workers have them.
func NewWaiter(db *sql.DB, opts ...Option) *Waiter {
	return &Waiter{consume.NewWaiter(db, configOf(opts))}
}

// WaitFor waits until a consumer has handled the event at a position, as [Worker.WaitFor] does
// and with the same errors. It looks at once, and then after pauses that double from 5 ms up to
// DispatcherInterval; all who wait for one consumer look together. It tells the workers of a
// consumer in partitions, as Worker.WaitFor does, unless db is a replica. While the database does
// not answer, it goes on until ctx ends. The first call also looks for the tables: some thirty
// round trips. The error is ErrInvalidConfig for what NewWaiter was given, ErrPrivileges if the
// role may not read all rows, and that of [migrations.Check] if the tables are not those of this
// version.
func (w *Waiter) WaitFor(ctx context.Context, consumer string, position int64) error {
	return w.engine.WaitFor(ctx, consumer, position)
}

// What Status returns, and where a worker is in its life.
type (
	Status              = observe.Status
	ConsumerStatus      = observe.ConsumerStatus
	Pause               = observe.Pause
	BlockingTransaction = observe.BlockingTransaction
	State               = observe.State
)

// The states of a worker.
const (
	StateNew      = observe.StateNew      // Start was not called yet
	StateStarting = observe.StateStarting // checks and registers
	StateRunning  = observe.StateRunning
	StateDraining = observe.StateDraining // finishes the batches in flight
	StateDrained  = observe.StateDrained  // as an operator asked: nothing runs, and Start waits for Stop
	StateStopped  = observe.StateStopped  // Start has returned
)
