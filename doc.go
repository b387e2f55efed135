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
//     [WithStaleGapThreshold] come late, see "Order and gaps". A [consumer.Partitioned] keeps
//     only the order of each key.
//   - Every position without an event that a consumer passes is in the audit table.
//   - Effects outside the database (mail, HTTP, another database) happen at least once, since a
//     batch that fails runs again. Make them idempotent, for example by the event's id.
//
// # Consumers
//
// A [consumer.Consumer] may also be a [consumer.ScopedConsumer], [consumer.BatchConsumer],
// [consumer.Starter], [consumer.Partitioned], [consumer.Versioned], [consumer.Projected] or
// [consumer.Forgetter]. In a handler, [consumer.Info] describes the delivery, and [consumer.Conn]
// returns the connection, for COPY.
//
// Rules for handlers, besides those of [consumer.Consumer]:
//
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
// committed, and the failing event is tried alone. So an error names the event. After
// [WithMaxConsecutiveFailures] failures in a row at one event the [FailurePolicy] applies.
//
// The worker pauses between tries, with jitter, from [WithPollInterval] up to
// [WithMaxPollInterval].
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
// The table consumer_gap_skips audits passed positions. State void is a rolled-back append. It
// is normal. State open is a position in doubt, which ends as late or void.
//
// # Options
//
// The comment of an option has its default and range. By purpose:
//
//   - throughput: [WithBatchSize]; less load on the database: [WithBatchPause];
//   - latency: [WithDispatcherStrategy], [WithNotifyConnectionString], and [WithNotifyChannel]
//     with the channel that the store notifies; without them [WithDispatcherInterval];
//   - failures: [WithFailurePolicy], [WithMaxConsecutiveFailures], [WithRetryLimit],
//     [WithPollInterval], [WithMaxPollInterval];
//   - a stop: [WithBatchTimeout], [WithShutdownTimeout];
//   - death of a worker: [WithHeartbeatInterval], [WithHeartbeatTimeout];
//   - assignment: [WithLeaderStrategy], [WithAssignmentStrategy], [WithRebalanceInterval];
//   - order: [WithGapPolicy], [WithStaleGapThreshold], [WithStaleGapHarborLag],
//     [WithMaxOpenRanges];
//   - events: [WithDecoder]; tracing: [WithBatchMiddleware], [WithHandleMiddleware];
//   - metrics and alarms: [WithObserver]; logs: [WithSlog];
//   - names: [WithHostname]; tables: [WithNames]. Give all packages the same [store.Names].
//
// # Deployment
//
// Tables. [migrations.Apply] creates and upgrades them. docs/operations.md has upgrades, roles and
// PgBouncer.
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
// Drivers and servers. PostgreSQL 13 or later; pgx through github.com/jackc/pgx/v5/stdlib or, with
// package pgxtx, a pgxpool.Pool, in every query mode, or lib/pq. Name the primary only, or add
// target_session_attrs=read-write.
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
// The log is usually a Store of package store/postgres. Any [store.Log] can be used, and
// [store.FromTxLog] adapts one whose reads take a transaction. Optional interfaces improve it:
// [store.SequenceNamer], [store.Binder], [store.ScopedReader], [store.SizedReader],
// [store.RangeReader], [store.AgeReader].
//
// # Errors
//
// Errors of a consumer are a [ConsumerError], which names the event. Besides the variables below,
// [Worker.Start] returns a [SetupError], [migrations.ErrNotApplied] or
// [migrations.ErrNewerVersion]. Any other error usually comes from the server, such as a wrong
// password. [ErrInvalidConfig], [ErrOutage], [ErrPrivileges], [ErrStandby],
// [ErrTransactionPooling] and [ErrPreparedStatements] are the same variables in packages jobs,
// jobs/table and jobs/schedule, where these define them.
//
// Package [github.com/pgfrontier/worker/observe/health] answers probes. The modules
// observe/prometheus and observe/otel export metrics, traces and alerts. Package
// [github.com/pgfrontier/worker/ops] has the operations of operators. Package
// [github.com/pgfrontier/worker/workertest] runs consumers in tests. The folder docs of the
// repository has guides for users and operators.
package worker
