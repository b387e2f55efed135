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

// New makes a worker. It does no I/O: Start checks the arguments.
//
// db is the database of the log, the checkpoints and the handlers' tables. eventStore is
// usually a *postgres.Store of package store/postgres.
func New(db *sql.DB, eventStore store.Log, consumers []consumer.Consumer, opts ...Option) *Worker {
	return &Worker{consume.New(db, eventStore, consumers, configOf(opts))}
}

// Describe returns, as JSON, what a build declares of its consumers: names, selected types and
// versions, starts and partitions. It needs no database. Print it in CI, and give it to the
// verb plan of pgfrontier or to Plan of package ops. These compare it with a deployment before
// the build runs. The error is the ErrInvalidConfig by which Start would refuse the consumers.
func Describe(consumers []consumer.Consumer) ([]byte, error) { return consume.Describe(consumers) }

// configOf returns the defaults, changed by opts.
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

// Start runs the worker until ctx ends, Stop is called, or an error occurs that no retry
// can end. The first two are a clean stop, and Start returns nil. Nothing of the worker
// runs when Start returns, except as [ErrHandlerOverdue] says.
//
// Start first checks the configuration and the database, and starts nothing if a check
// fails. While the database cannot be reached, Start retries, for ever or for
// [WithRetryLimit], and reports [observe.TaskFailed].
//
// Start creates no tables. A program that creates and upgrades them calls
// [migrations.Apply] first, as the example does.
//
// Close db after Start has returned, not before. A worker whose db is closed finishes the
// batches in flight, and returns [ErrPoolClosed].
//
// At a stop no new batch begins, and the batches in flight finish. BatchTimeout limits a
// batch, and ShutdownTimeout limits all of them. Each consumer is handed back to the
// other workers when its own batch has ended.
//
// A stop during an outage may return [ErrOutcomeUnknown]: a batch has failed, and the
// worker cannot learn from the database what the handler did.
//
// A handler that ignores the end of its context cannot be ended. A few seconds after the
// limit Start returns without it, with [ErrHandlerOverdue] and the consumer's name. The
// handler's transaction is rolled back. Only its goroutine still runs, until the handler
// returns.
//
// An operator may drain the worker, see DrainWorker of package ops. Then the worker stops
// in the same way, and Start waits, in [observe.StateDrained], until ctx ends or Stop is called. If
// the process ended instead, an orchestrator would restart it, and it would take work
// again.
func (w *Worker) Start(ctx context.Context) error { return w.engine.Start(ctx) }

// Stop asks the worker to finish the batches in flight and end. It returns at once, and
// Start waits for them. No batch begins afterwards, except one that is just beginning. It
// may be called at any time, any number of times, also from a handler.
func (w *Worker) Stop() { w.engine.Stop() }

// Status returns a snapshot of the worker. It may be called at any time.
func (w *Worker) Status() Status { return w.engine.Status() }

// Live returns an error if only a new process helps: Start has returned, or one of the
// worker's loops hangs. The error names the loop. The worker recovers from every other
// condition by itself. A drained worker is live. Live never asks the database. Package
// health serves it to an orchestrator.
func (w *Worker) Live() error { return w.engine.Live() }

// Ready returns the reasons why the worker does not do all of its work, or nothing if it
// does. Each error is one line, with the remedy if the worker knows it. Package health serves them
// to an orchestrator. Ready reads the head of the log, and the ages of the events that the worker's
// consumers have not handled. It runs two statements, with a limit of 5s per statement, and ends
// with ctx.
//
// maxAge is how long a consumer may not move while an event waits for it. It is also how
// long Safe may not move while the head of the log is above it. maxAge must exceed
// StaleGapThreshold, because an open transaction may hold the consumers back that long. A
// paused consumer does not count. Nor does a late consumer that moves, because it catches
// up.
func (w *Worker) Ready(ctx context.Context, maxAge time.Duration) []error {
	return w.engine.Ready(ctx, maxAge)
}

// WaitFor waits until a consumer has handled the event at a position, in whatever process
// the consumer runs. Then the consumer's projection contains the event.
//
// consumer may be the name of a projection, see [consumer.Projected]. Then WaitFor waits for the
// version that is in use, also if a Switch exchanges the versions meanwhile. The version that comes
// into use is behind unless it had caught up before the Switch.
//
// The error is ErrDeadLettered if the event is a dead letter of the consumer, and
// ErrNoConsumer if the consumer does not exist, or was renamed. If ctx ends first, the error says how far
// the consumer is. If the worker ended before it could begin, WaitFor returns an error at
// once. A process without a worker uses a [Waiter].
//
// A consumer in this worker releases its callers without a poll. If this worker and the
// consumer's worker both listen (DispatcherStrategyNotify), WaitFor requests one
// notification. Besides, all callers that wait for one consumer share one poll per
// DispatcherInterval, once the worker has started. Of a partitioned consumer WaitFor waits
// for all parts. They commit at once that they have passed a requested position. A worker
// with DispatcherStrategyPoll gets requests of its own process only. Without a request that
// commit takes up to 25 ms per partition.
func (w *Worker) WaitFor(ctx context.Context, consumer string, position int64) error {
	return w.engine.WaitFor(ctx, consumer, position)
}

// Waiter waits for consumers in a process that runs none of them, for example one that
// serves HTTP. It needs no Start and no Stop. Any number of goroutines may use it.
type Waiter struct{ engine *consume.Waiter }

// NewWaiter makes a Waiter. It does no I/O: WaitFor checks the arguments.
//
// db is the database from which the projections are read. It may be a replica: WaitFor then
// waits until the checkpoint has been replayed there, together with the handlers' writes.
// It may not be several replicas behind one address. The role needs SELECT on the workers'
// tables, and nothing else.
//
// Only the options of tables' names and [WithDispatcherInterval] apply. They must be the
// same as the workers'.
func NewWaiter(db *sql.DB, opts ...Option) *Waiter {
	return &Waiter{consume.NewWaiter(db, configOf(opts))}
}

// WaitFor waits until a consumer has handled the event at a position, as [Worker.WaitFor]
// does and with the same errors. It polls at once, and then after pauses that double from 5
// ms up to DispatcherInterval. All callers that wait for one consumer share the polls.
// WaitFor requests a notification from the workers of a partitioned consumer, as
// Worker.WaitFor does, unless db is a replica.
//
// While the database does not answer, WaitFor retries until ctx ends. The first call also
// resolves the tables, in about thirty round trips. The error is ErrInvalidConfig if an
// argument of NewWaiter is invalid, and ErrPrivileges if the role may not read all rows. It
// is the error of [migrations.Check] if the tables are not of this version.
func (w *Waiter) WaitFor(ctx context.Context, consumer string, position int64) error {
	return w.engine.WaitFor(ctx, consumer, position)
}

// Status is the state of a worker, see [Worker.Status].
type Status = observe.Status
