// Package worker runs consumers (projections, process managers, publishers) over a PostgreSQL
// event log. Any number of processes share the consumers, with PostgreSQL as the only
// coordinator. A batch of events and its checkpoint are one transaction. So what a handler
// writes through that transaction happens exactly once.
//
//	w := worker.New(db, eventStore, []consumer.Consumer{Totals{}})
//	err := w.Start(ctx) // until ctx ends, Stop is called, or an error that no retry can end
//
// # Concepts
//
// An event belongs to an aggregate and has a position in the log. Positions come from a
// sequence. They have gaps, because an append that rolls back loses its positions. Transactions
// commit in any order, so a lower position may appear after a higher one.
//
// A [consumer.Consumer] handles events. Its checkpoint is the position up to which it has
// handled them. A batch is one transaction with some events, the handler's calls, and the move
// of the checkpoint. The first statement of a batch is its guard: it fails if the consumer's
// progress has changed since it was read. So of two workers that believe they run a consumer,
// only one can commit.
//
// The frontier is the position up to which the log may be read. A missing position is either
// still being written or will never appear: package [frontier] proves which. A position whose
// append rolled back is void. A position that a consumer passes while its transaction is open is
// in doubt.
//
// One worker is the leader. It assigns a consumer to a live worker that has code for it. A
// worker that stops hands its consumers back. Other workers take over those of a dead worker.
//
// # What is guaranteed
//
//   - What a handler writes through its transaction is neither lost nor applied twice. That
//     holds for late commits, rollbacks, crashes and lost connections.
//   - Events of one aggregate come in order of version, always. All events come in order of
//     position. Exception: events of a transaction that stays open longer than
//     [WithStaleGapThreshold] (30 s by default) come late, see "Order and gaps". A
//     [consumer.Partitioned] keeps only the order of each key.
//   - Every position without an event that a consumer passes is in the audit table.
//   - Effects outside the database (mail, HTTP, another database) happen at least once, since a
//     batch that fails runs again. Make them idempotent, for example by the event's id.
//
// # Consumers
//
// A consumer has a name and a Handle method. It may implement more:
//
//   - [consumer.ScopedConsumer] names its aggregate types. Other events are skipped in SQL.
//   - [consumer.BatchConsumer] gets all events of a batch at once, to write in bulk. It embeds
//     [consumer.BatchOnly] if it needs no Handle.
//   - [consumer.Starter] begins at the head of the log, or after a position.
//   - [consumer.Partitioned] is handled in partitions, by goroutines and workers at the same
//     time: see docs/guide.md.
//
// In a handler, [consumer.Info] returns the number of the attempt and whether the event is
// late. [consumer.Conn] returns the connection of the transaction, for COPY and other features
// of the driver.
//
// [Worker.WaitFor] waits until a consumer has handled a position, in whatever process the
// consumer runs. A process that runs no consumer uses a [Waiter].
//
// # Rules for handlers
//
// [consumer.Consumer] gives the reasons:
//
//   - Execute all statements through the given transaction, none through the pool.
//   - Do not end the transaction, neither by a method nor by SQL. The worker detects a commit,
//     sets the checkpoint back to before the event at fault, and ends with
//     [ErrTransactionEnded]. docs/operations.md says what is detected when.
//   - Release savepoints, or roll back to them. The worker cannot detect a savepoint that is
//     left behind.
//   - Pass the context to everything that the handler waits for. A handler that ignores the end
//     of its context cannot be stopped: see [ErrHandlerOverdue].
//   - Use SET LOCAL, not SET. It lasts until the end of the batch, so it also affects the
//     handlers of later events. After SET LOCAL ROLE, reset the role before you return. A
//     search path or a temporary table that a handler leaves in its session affects other
//     handlers on that connection.
//
// # Failures
//
// A handler fails if it returns an error or panics, if its batch takes longer than
// [WithBatchTimeout], or if the commit is refused. Then the events before the failing one are
// committed, and the failing event is tried alone. So an error names the event.
//
// After half of [WithBatchTimeout] a batch commits the handled events, and the others follow in
// the next batch. A [consumer.BatchConsumer] gets fewer events after a batch that took too long.
// It names the failing event by a [consumer.EventError]. Otherwise the batch is tried again
// unchanged, then halved until the event is found. These tries do not count as failures of the
// event.
//
// The worker pauses between tries, with jitter, from [WithPollInterval] up to
// [WithMaxPollInterval]. After [WithMaxConsecutiveFailures] failures in a row at one event the
// [FailurePolicy] applies. The default is [FailStop].
//
// A lost connection, a server that restarts and a full disk do not count as failures of a
// handler. The batch is tried again with growing pauses, without a limit or for [WithRetryLimit].
// When the answer to a COMMIT is lost, the checkpoint shows whether the commit happened. If the
// same event causes such a failure repeatedly, it counts as its handler's:
//
//   - from the second time on, if the worker's other connections survive: a lost connection, a
//     server that is out of memory or cannot read a file;
//   - from the sixth time in a row on: a deadlock, a serialization failure.
//
// A handler's own deadline for a statement counts at once. pgx then closes the connection.
//
// # Order and gaps
//
// Under [GapSkipStale], the default, consumers pass a transaction that stays open longer than
// [WithStaleGapThreshold]. The positions that it may own are recorded per consumer as
// open. Events that appear there are delivered late, and [consumer.Info] says so.
// [Status].Blocked, the log and [observe.FrontierBlocked] name the transaction and the remedy.
//
// Under [GapWait], consumers keep the global order and wait as long as the transaction is open.
// Only an operator's skip of an event passes earlier positions that are still being written.
//
// The table consumer_gap_skips audits passed positions. State void is a rolled-back append. It
// is normal. State open is a position in doubt, which ends as late or void. Closed rows are kept for [WithGapSkipRetention], by default without a
// limit. Neighbouring void rows are merged, so the table stays small.
//
// # Options
//
// [Config] lists the options with defaults and ranges. [Worker.Start] returns an error that
// names the option, the value and the range. By purpose:
//
//   - throughput: [WithBatchSize]; less load on the database: [WithBatchPause];
//   - latency: [WithDispatcherStrategy], [WithNotifyConnectionString], and [WithNotifyChannel]
//     with the channel that the store notifies; without them [WithDispatcherInterval];
//   - failures: [WithFailurePolicy], [WithMaxConsecutiveFailures], [WithRetryLimit],
//     [WithPollInterval], [WithMaxPollInterval];
//   - a stop: [WithShutdownTimeout]. By default a stop waits for the batches in flight, as long
//     as [WithBatchTimeout] allows. Start returns at most ten seconds later;
//   - death of a worker: [WithHeartbeatInterval], [WithHeartbeatTimeout];
//   - assignment: [WithLeaderStrategy], [WithAssignmentStrategy], [WithRebalanceInterval];
//   - order: [WithGapPolicy], [WithStaleGapThreshold], [WithStaleGapHarborLag],
//     [WithMaxOpenRanges];
//   - names: [WithHostname]; tables: [WithNames]. Give all packages the same [store.Names].
//
// # Deployment
//
// Tables. [migrations.Apply] creates and upgrades them, from any number of processes at once.
// The command cmd/migrate-gen writes the same as SQL files. Apply the migrations of a new
// version first, then replace the processes one by one.
//
// Connections. A worker keeps two connections of the pool: for the frontier and for its
// coordination. It occasionally needs one more. A busy consumer takes one for its batch.
// Read-ahead uses one connection for all unscoped consumers together, and up to two for a scoped
// consumer. [DispatcherStrategyNotify] adds one outside the pool. Start refuses a pool of fewer
// than four. In a limited pool, the consumers leave three connections free and share the rest,
// so no heartbeat waits for a handler. Give a worker a pool of its own: it does not count
// connections of other users. Call SetMaxIdleConns(5 + consumers), and two more per scoped
// consumer: database/sql keeps two idle connections by default. A worker that lacks idle
// connections logs it.
//
// Drivers and servers. PostgreSQL 13 or later; pgx through github.com/jackc/pgx/v5/stdlib, in
// every query mode, or lib/pq. Behind PgBouncer with transaction pooling, use
// [LeaderStrategyLease] and a driver that sends a statement and its values together, such as
// pgx with default_query_exec_mode=exec. Start refuses other configurations. Name the primary
// only, or add target_session_attrs=read-write. The worker rejects an answer of a standby, an
// abandoned primary or a restored backup: reads and guards prove the server's incarnation.
//
// Privileges. Start returns [ErrPrivileges] with all GRANTs that its role lacks.
// cmd/migrate-gen -grants prints all of them.
//
// Start refuses configurations that break the proof, and the worker checks them afterwards:
//
//   - a sequence with CACHE above 1, an increment other than 1, CYCLE or a MINVALUE below 1;
//   - row-level security that applies to the role, whatever its policies, on the events (checked
//     afterwards) or on a table of the library (checked by Start only);
//   - a standby.
//
// The following cannot be detected. Do not do it:
//
//   - insert explicit positions;
//   - draw a position in one transaction and insert it in another;
//   - fill the events table by logical replication.
//
// # The log
//
// The log is usually a Store of package store/postgres. Any [store.Log] can be used. Optional
// interfaces improve it:
//
//   - [store.SequenceNamer]: the frontier waits only for transactions that hold the sequence.
//     Otherwise any open transaction of the database delays it.
//   - [store.Binder]: the read itself proves the server's incarnation.
//   - [store.ScopedReader], [store.SizedReader], [store.RangeReader] save work and memory.
//   - [store.AgeReader] returns how long events have waited, for [Worker.Ready].
//
// [store.FromTxLog] adapts a log whose read methods take a transaction.
//
// # What Start returns
//
// Start returns nil after a clean stop: its context has ended, or Stop was called. Otherwise
// the error names the remedy. [errors.Is] and [errors.As] distinguish:
//
//   - [ErrInvalidConfig], [ErrAlreadyStarted]: the program is wrong;
//   - [ErrOutage]: the database was away for longer than [WithRetryLimit];
//   - [migrations.ErrNotApplied], [migrations.ErrNewerVersion]: the tables do not fit;
//   - [ErrPrivileges], [ErrTransactionPooling], [ErrPreparedStatements], [ErrStandby]: the role,
//     the proxy or the server does not fit;
//   - a [SetupError]: the log or its sequence breaks the proof;
//   - [ErrConsecutiveFailures]: a handler failed too often, under [FailStop];
//   - [ErrTransactionEnded], [ErrOutcomeUnknown]: a handler ended its transaction, or may have;
//   - [ErrHandlerOverdue]: a handler kept the worker from stopping;
//   - [ErrPoolClosed]: the program closed db before Start returned.
//
// [ErrInvalidConfig], [ErrOutage], [ErrPrivileges], [ErrStandby], [ErrTransactionPooling] and
// [ErrPreparedStatements] are the same variables in packages jobs, jobs/table and
// jobs/schedule, where these define them. Any other error usually comes from the server, such
// as a wrong password. Errors of a consumer are a [ConsumerError], which names the event.
// [Worker.WaitFor] has two errors of its own, [ErrDeadLettered] and [ErrNoConsumer].
//
// # Observability, operations and tests
//
// Package [github.com/pgfrontier/worker/observe/health] answers probes. [Worker.Status] is a
// snapshot. [WithObserver] is for metrics and alarms, [WithSlog] for logs, and
// [WithBatchMiddleware] and [WithHandleMiddleware] for tracing. The modules observe/prometheus
// and observe/otel export metrics, traces and alerts. Package
// [github.com/pgfrontier/worker/ops] has the operations of operators. Package
// [github.com/pgfrontier/worker/workertest] runs consumers in tests. The folder docs of the
// repository has guides for users and operators.
package worker
