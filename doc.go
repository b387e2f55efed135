// Package worker runs consumers (projections, process managers, publishers)
// over a PostgreSQL event log. Any number of processes share the consumers out,
// with PostgreSQL as the only coordinator. Each batch of events and its
// checkpoint are one transaction: effects written through that transaction
// happen exactly once.
//
//	w := worker.New(db, eventStore, []consumer.Consumer{Totals{}})
//	err := w.Start(ctx) // until ctx ends, Stop is called, or no retry can help
//
// # Concepts
//
// An event belongs to an aggregate and has a position in the log. Positions are
// drawn from a sequence: they are unique and ascending, and have gaps, since an
// append that rolls back takes its positions along. Transactions commit in any
// order, so a lower position may appear after a higher one.
//
// A [consumer.Consumer] handles events. Its checkpoint is the position up to
// which it has handled them. A batch is some events, the calls of the handler,
// and the checkpoint's move, in one transaction. The first statement of a batch
// is its guard. It moves the checkpoint only if nobody else has changed the
// consumer's progress. Two workers may both believe that they run a consumer;
// only one of them can commit.
//
// The frontier tells how far the log may be read. A missing position is either
// still being written or gone for good, and the locks of open transactions prove
// which: see package [frontier]. A position whose append rolled back is void. A
// position that is passed while its transaction is open is in doubt.
//
// One worker leads and assigns each consumer to a live worker that has code for
// it. A worker that stops hands its consumers back. The others take over from one
// that dies.
//
// # What is guaranteed
//
//   - Nothing is lost and nothing is applied twice, for all that a handler writes
//     through its transaction: whatever commits late, rolls back, crashes or is
//     cut off.
//   - Events of one aggregate come in order of version, always. All events come in
//     order of position, but for those of a transaction that stays open longer than
//     [WithStaleGapThreshold]: see "Order and gaps". A [consumer.Partitioned] keeps
//     the order of each key, and no other.
//   - Every position without an event that a consumer passes is in the audit table.
//   - Effects elsewhere (mail, HTTP, another database) happen at least once. A batch
//     that fails after such a call runs again. Make the call idempotent, by event id
//     for one.
//
// # Consumers
//
// A consumer has a name and a Handle method. It may implement more:
//
//   - [consumer.ScopedConsumer] names the aggregate types that it wants. What it
//     does not want is skipped in SQL.
//   - [consumer.BatchConsumer] takes all events of a batch at once, to write in bulk.
//     It embeds [consumer.BatchOnly] if it needs no Handle.
//   - [consumer.Starter] begins at the head of the log, or after a position.
//   - [consumer.Partitioned] is handled in partitions, by goroutines and workers at
//     the same time, each key in order: see docs/partitions.md.
//
// In a handler, [consumer.Info] tells the number of the attempt and whether the
// event is late, and [consumer.Conn] returns the connection of the transaction, for
// COPY and other features of the driver.
//
// [Worker.WaitFor] waits until a consumer has handled a position, in whatever
// process it runs: then what was just appended can be read from the projection.
// A name that no worker knows is an error. A process that runs no consumer waits with a
// [Waiter].
//
// # Rules for handlers
//
// Run every statement through the transaction that is given, none through the
// pool. A statement on the pool commits by itself: it stays when the batch rolls
// back, and runs again with the next attempt. If it needs a row that the
// transaction has locked, or a connection that the pool does not have, it waits
// until [WithBatchTimeout], in each attempt.
//
// Do not end the transaction: no Commit, no Rollback, no SQL that does the same.
// A commit would commit the checkpoint of the whole batch with a part of its
// events. The worker notices, sets the checkpoint back to before the event at
// fault, and ends with [ErrTransactionEnded]. docs/operations.md tells what is
// noticed when, and what is left to do.
//
// Do not leave a savepoint behind: release it, or roll back to it. A later event
// of the batch that rolls back to it undoes what was handled since, and nobody can
// see that.
//
// Pass the context on to all that the handler waits for. A handler that ignores
// its end cannot be stopped: see [ErrHandlerOverdue].
//
// Use SET LOCAL, not SET. All tables of the worker are found once, at
// [Worker.Start], and named with their schema afterwards. So a search path or a
// temporary table that a handler leaves in its session misleads no statement of the
// worker. It still misleads other handlers on that connection. What SET LOCAL sets
// lasts until the end of the batch, so the handlers of its later events have it too:
// after SET LOCAL ROLE, set the role back before you return.
//
// # Failures
//
// A handler fails if it returns an error or panics, if its batch takes longer than
// [WithBatchTimeout], or if the commit is refused. The events before the failing
// one are then committed, and that one is tried alone. So an error names the event,
// and the event holds up nothing that comes before it. After half of
// [WithBatchTimeout] a batch commits the events that it has handled, and the others follow in
// the next one. A batch of a [consumer.BatchConsumer] that takes too long has fewer events the
// next time. A [consumer.BatchConsumer] names the event by a [consumer.EventError].
// If no event is named, the batch is tried again as it is, and then halved until the event
// is found; those tries do not count as failures of the event.
//
// What a handler needs may be away for a moment. So between tries the worker pauses,
// with jitter, from [WithPollInterval] up to [WithMaxPollInterval]. After [WithMaxConsecutiveFailures] in a row at one event,
// the [FailurePolicy] applies:
//
//   - [FailStop], the default: Start returns [ErrConsecutiveFailures] with the cause.
//   - [FailPause]: the consumer is paused in all workers until an operator resumes
//     it. The others go on.
//   - [FailDeadLetter]: the event goes to consumer_dead_letters, in the transaction
//     that moves the checkpoint. Later events of its aggregate follow it there, in
//     order, until an operator has them retried or discarded. All other aggregates
//     go on. Where a consumer has a key of its own, see [consumer.ByKey], it is the
//     key in place of the aggregate.
//
// A lost connection, a server that restarts and a full disk are nobody's failure.
// The batch is tried again with growing pauses, for ever or for [WithRetryLimit].
// When the answer to a COMMIT is lost, the checkpoint tells whether it happened.
// What the same event meets again and again does count as a failure of its handler:
//
//   - from the second time on, if the worker's other connections outlive it: a lost
//     connection, a server that is out of memory or cannot read a file;
//   - from the sixth time in a row on: a deadlock, a serialization failure.
//
// A handler's own deadline for a statement counts at once. pgx then closes the
// connection.
//
// # Order and gaps
//
// Under [GapSkipStale], the default, consumers pass a transaction that stays open
// longer than [WithStaleGapThreshold]. The positions that it may own are recorded
// for each consumer as open. If events appear there, they are delivered late, and
// [consumer.Info] says so. What blocks, and what ends it, is in [Status].Blocked,
// the log, and [observe.FrontierBlocked].
//
// Under [GapWait], consumers keep the global order and wait for as long as the
// transaction is open. Only an operator who skips an event goes past what is still
// being written before it.
//
// The table consumer_gap_skips audits every position without an event that was
// passed. State void is a rolled-back append: everyday business, at most one row a
// batch. State open is a doubt, which ends as late or void: such rows tell of
// transactions that stay open. Closed rows are kept for ever, or for
// [WithGapSkipRetention]. Neighbouring void rows become one, so the table stays
// small.
//
// # Options
//
// [Config] lists every option with its default and range. [Worker.Start] returns an
// error that names the option, the value and the range. By purpose:
//
//   - throughput: [WithBatchSize]; to be gentle on the database, [WithBatchPause];
//   - latency: [WithDispatcherStrategy] with [DispatcherStrategyNotify],
//     [WithNotifyConnectionString], and [WithNotifyChannel] with the channel that the
//     store notifies; without it, [WithDispatcherInterval];
//   - failures: [WithFailurePolicy], [WithMaxConsecutiveFailures], [WithRetryLimit],
//     [WithPollInterval], [WithMaxPollInterval];
//   - a stop: [WithShutdownTimeout]. By default it waits as long as [WithBatchTimeout]
//     lets the batches in hand. Ten seconds later Start returns in any case;
//   - death of a worker: [WithHeartbeatInterval], [WithHeartbeatTimeout];
//   - who runs what: [WithLeaderStrategy], [WithAssignmentStrategy],
//     [WithRebalanceInterval];
//   - the name that lists of workers show: [WithHostname];
//   - order: [WithGapPolicy], [WithStaleGapThreshold], [WithStaleGapHarborLag],
//     [WithMaxOpenRanges];
//   - tables: [WithWorkerNodesTable], [WithConsumerAssignmentsTable],
//     [WithConsumerCheckpointsTable], [WithConsumerGapSkipsTable],
//     [WithLeaderElectionTable]. A name may carry a schema: "infra.worker_nodes".
//
// # Deployment
//
// Tables. [migrations.Apply] creates and upgrades them, from any number of processes
// at once. The command cmd/migrate-gen writes the same as SQL files. Apply the
// migrations of a new version first, then replace the processes one by one.
//
// Connections. A worker keeps two of the pool for itself and needs one more now and
// then. Each busy consumer takes one for its batch. Reading ahead takes one for all
// consumers of all events, and up to two for each that names types. Start refuses a
// pool of fewer than four. In a pool that
// [database/sql.DB.SetMaxOpenConns] limits, the consumers leave three alone and take
// turns with the rest, so no heartbeat waits for a handler. With four, one batch runs
// at a time. Give a worker a pool of its own: it does not count what others take, nor
// a handler that queries the pool.
//
// Let the pool keep its connections: SetMaxIdleConns(5 + consumers), and two more
// for each that names types. By default
// database/sql keeps two. It closes and opens all others again and again, each a new
// process of the server. A worker that sees this says so in the log.
// [DispatcherStrategyNotify] adds one connection outside the pool.
//
// Drivers and servers. PostgreSQL 13 or later; pgx through
// github.com/jackc/pgx/v5/stdlib, in every query mode, or lib/pq.
//
// PgBouncer. With session pooling nothing changes. With transaction pooling use
// [LeaderStrategyLease] and a driver that sends a statement and its values in one go,
// such as pgx with default_query_exec_mode=exec. Start refuses what cannot work, with
// [ErrTransactionPooling] or [ErrPreparedStatements].
//
// Privileges. Start returns [ErrPrivileges] with every GRANT that its role lacks.
// cmd/migrate-gen -grants prints all of them. Start also refuses a role to which
// row-level security of the events or of a table of the library applies, whatever its
// policies: a dead letter that the role does not see would hold no event back. Switched on
// later, it shows for the events only.
//
// Servers. Name the primary only, or add target_session_attrs=read-write. Each read and
// each guard proves the server's incarnation, so an answer of a standby, an abandoned
// primary or a restored backup is thrown away.
//
// Start refuses what would break the proof, and the worker watches it afterwards:
//
//   - a sequence with CACHE above 1, an increment other than 1, CYCLE or a MINVALUE below 1;
//   - row-level security on the events table;
//   - a standby.
//
// Not detectable, so never do it:
//
//   - insert explicit positions;
//   - draw a position in one transaction and insert it in another;
//   - fill the events table by logical replication.
//
// # The log
//
// The log is usually a Store of package store/postgres. Any [store.Log] will do.
// Optional interfaces make it better:
//
//   - [store.SequenceNamer]: the frontier awaits only the transactions that hold the
//     sequence. Otherwise every transaction of the database delays it.
//   - [store.Binder]: the read itself proves the server's incarnation.
//   - [store.ScopedReader], [store.SizedReader], [store.RangeReader] save work and memory.
//   - [store.AgeReader] tells how long events wait, for [Worker.Ready].
//
// [store.FromTxLog] adapts a log whose readers want a transaction.
//
// # What Start returns
//
// Start returns nil after a clean stop: its context has ended, or Stop was called.
// Otherwise its error says what went wrong. These can be told apart, as [errors.Is]
// and [errors.As] do:
//
//   - [ErrInvalidConfig], [ErrAlreadyStarted]: the program is wrong;
//   - [ErrOutage]: the database was away for longer than [WithRetryLimit], at the start or later;
//   - [migrations.ErrNotApplied], [migrations.ErrNewerVersion]: the tables are missing or older
//     than the program, or newer;
//   - [ErrPrivileges]: the role lacks privileges;
//   - [ErrTransactionPooling], [ErrPreparedStatements]: a proxy breaks what the worker needs;
//   - [ErrStandby]: the server takes no writes;
//   - a [SetupError]: the log, or its sequence, breaks the proof;
//   - [ErrConsecutiveFailures]: a handler failed too often, under [FailStop];
//   - [ErrTransactionEnded], [ErrOutcomeUnknown]: a handler ended its transaction, or
//     may have. Read the error: it says what to do;
//   - [ErrHandlerOverdue]: a handler kept the worker from stopping;
//   - [ErrPoolClosed]: the program has closed db before Start returned.
//
// The error names the remedy. [ErrInvalidConfig], [ErrOutage], [ErrPrivileges], [ErrStandby],
// [ErrTransactionPooling] and [ErrPreparedStatements] are the same variables as those of packages jobs,
// jobs/table and jobs/schedule, where these have them. A program asks once for all packages. Any other
// error is mostly the server's, such as a wrong password: the driver's error tells more.
//
// Errors of a consumer are a [ConsumerError], which names the event. [Worker.WaitFor]
// has two of its own, [ErrDeadLettered] and [ErrNoConsumer].
//
// # Watching, operating, testing
//
// Package [github.com/pgfrontier/worker/observe/health] answers probes. [Worker.Status] is a
// snapshot for more, [WithObserver] for metrics and alarms,
// [WithSlog] for logs, [WithBatchMiddleware] and [WithHandleMiddleware] for tracing. Package
// [github.com/pgfrontier/worker/ops] pauses, resumes, resets and retires consumers,
// skips events and keeps dead letters; each operation leaves a record. Package
// [github.com/pgfrontier/worker/workertest] runs consumers in tests. The modules prometheus and
// otel beside this one make metrics, traces and alerts of it all: metrics.md.
//
// The folder docs of the repository has more: operations.md, decoding.md, replaying.md,
// observing.md, metrics.md, performance.md, migrating.md and architecture.md.
package worker
