// Package jobs runs durable jobs on PostgreSQL. An application enqueues a job in the
// transaction that makes it necessary. Any number of processes run it, a job on one
// of them, until it has completed or failed for good.
//
//	client := jobs.NewClient(db)
//	_, err := client.Enqueue(ctx, tx, Welcome{UserID: 7}) // in the transaction that creates user 7
//
//	handlers := jobs.NewHandlers()
//	jobs.Register(handlers, func(ctx context.Context, j *jobs.Job[Welcome]) error {
//		return mail(ctx, j.Args.UserID) // nil completes the job, an error is tried again
//	})
//	err := jobs.NewWorker(db, handlers, jobs.WithQueue("default", 100)).Start(ctx)
//
// # Concepts
//
// A job has a kind, which names its handler, and arguments, a Go value that is stored as JSON.
// It is in a queue, has a priority, and is due at a time.
//
// A worker claims due jobs: as many as it has free slots, in one statement. Then it runs their
// handlers. The statement that settles a run, which stores its outcome, names the random number
// of the claim. So a run that was taken for dead and comes back finishes nothing.
//
// A run is one execution of a job by a worker. Attempt is the number of claims of a job. A
// failure is a run whose handler returned an error. A reset is a run that was lost with its
// worker.
//
// # Enqueueing
//
// [Client.Enqueue] takes a transaction, and the job is part of the transaction.
// [Client.EnqueueMany] enqueues thousands of jobs in few statements. The options of a job:
//
//   - [At], [In]: when it is due, by the database's clock; at once by default;
//   - [Queue], [Priority]: where it waits; [DefaultQueue] and 5 by default;
//   - [GoodUntil]: a job that does not run by then expires, also between attempts;
//   - [MaxAttempts], [MaxResets]: how often it may fail, 15 by default, and how many
//     workers may be lost while they run it, 5 by default;
//   - [Unique], [UniqueUntilStart], [Once]: keys, of which each has one job at a time, until the
//     start of the job, or for a time;
//   - [Meta]: anything beside the arguments, such as a trace.
//
// [MaxArgs] bounds the size of arguments. A rolling deployment runs old and new programs at once.
// So only add fields to arguments, and give arguments whose meaning changes a new kind.
//
// In the Handle of a consumer of package worker, [Client.EnqueueFor] enqueues jobs once for each
// event and call. [WithNames] names the tables of the consumer if they have other names.
//
// [Wait] waits for the end of a job and returns its result, or a [FailedError]. Call it after the
// commit of the transaction that enqueued the job.
//
// # Handlers and outcomes
//
// [Register], [RegisterTx], [RegisterBatch] and [RegisterBatchTx] add the handler of a
// kind. The options of a registration: [Timeout], [MaxAttempts], [Retry], [Terminal],
// [OnlyRetry], [BatchSize]. MaxAttempts of a job overrides MaxAttempts of its handler.
//
// The outcomes of a job:
//
//	the handler               the job                                code
//	------------------------  -------------------------------------  ----------
//	returns nil               completed                              -
//	returns an error          a failure: again after Retry, or       Code() of
//	                          failed at MaxAttempts                  the error
//	  with a Terminal code,   failed                                 Code()
//	  or not in OnlyRetry
//	returns Fail(err)         failed                                 Code()
//	returns RetryAfter(d, e)  a failure: again in d, or failed       Code()
//	returns Snooze(d)         again in d, not a failure              -
//	returns Discard(err)      cancelled                              Code()
//	panics, calls Goexit      as an error                            PANIC
//	exceeds its Timeout       as an error                            TIMEOUT
//	ends its transaction      failed                                 TX_ENDED
//	is lost with its worker   a reset: again soon, or failed at      WORKER_LOST
//	                          MaxResets
//	loses its connection      again in a second; a reset, if the     CONNECTION
//	(RegisterTx)              database answers others
//	was cancelled             completed if it returns nil, which     -
//	                          a RegisterTx no longer can; else
//	                          cancelled
//	outlives a stop           again at once, not a failure           -
//	cannot decode arguments   failed                                 ARGS
//	sets a result that        failed                                 RESULT
//	  PostgreSQL refuses
//
// An error has a code if the error, or an error that it wraps, has a method Code() string. The
// code is stored with the text of the error. If an error of the handler has a code of the worker,
// the code is stored with APP_ in front: see [CodePanic]. [Info.Attempts] has the latest hundred
// runs that did not finish the job. A thousand such runs are kept.
//
// [Exponential], the default, doubles the pause from 15 seconds to a day: 15 attempts take about
// three days. [Steps] and [Fixed] are other policies. Any function of the number of failures and
// the error is a policy.
//
// In a handler, [Job.SetResult] stores a result, and [Job.Log] stores entries for [Client.Logs].
// When the run must end, the context ends, and [context.Cause] returns [ErrTimeout],
// [ErrCancelled] or [ErrClaimLost]. If a handler of [Register] then returns nil, the job has
// completed all the same, unless the claim is lost. The transaction of [RegisterTx] is rolled
// back with its context, so its job has not completed.
//
// # Transactions
//
// The handler of [RegisterTx] gets a transaction. After the handler has returned nil, the worker
// completes the job in this transaction and commits. The handler runs without a lock on the job,
// so the job can be cancelled, or given to another worker. Of two runs that reach the commit, one
// commits. [Job.CompleteTx] does the same in a transaction of the handler's own, for a handler
// that works for long and writes at the end.
//
// The rules for handlers of package worker apply. After SET LOCAL ROLE the worker sets the role
// back before it completes the job. Before CompleteTx the handler must set it back.
//
// If PostgreSQL aborts a transaction for another one (deadlock, serialization failure), the
// transaction runs again at once, up to three times. If the row of the job is locked, the worker
// waits for five seconds. Then it rolls back, and the job runs again. Neither is a failure.
//
// # Batches
//
// A handler of [RegisterBatch] or [RegisterBatchTx] takes the jobs of its kind from one claim. To
// fill batches of 500, give the queue 500 slots or more. A batch that fails is halved until the
// error belongs to one job. So a poison job counts its failures, and the other jobs complete. A
// job that makes its batches hang is soon alone. A cancelled job ends with its batch.
//
// # Queues, priorities, order
//
// [WithQueue] names the queues that a worker serves, with their numbers of slots. Without
// the option, a worker has ten slots for [DefaultQueue]. [WithConcurrency] bounds all queues
// together, and [WithQueuePriority] sets which queues get the shared slots first. A full queue
// does not delay others. A job of a kind without a handler is left for another worker.
// [observe.UnknownKinds] and [Status] name such kinds.
//
// Jobs of a queue start in order of priority (1 first), then of due time, then of ID. Priorities
// are strict among unclaimed jobs: while jobs of priority 1 are due, no claim takes a job of
// priority 2. Jobs run in parallel, so they end in any order. Exception: other jobs may overtake
// a job that becomes visible late, or was released, for about a second. They may do so for
// longer behind hundreds of thousands of jobs without a handler, or while a long transaction
// keeps vacuum from removing dead rows.
//
// An idle worker polls at [WithPollInterval], a second by default. It starts jobs with a later due
// time at that time. With [WithMaxPollInterval] the worker polls more seldom while it finds
// nothing. With [WithNotifyConnectionString] the worker is notified of new and released jobs
// within milliseconds. Enqueueing notifies only while a worker of the queue is idle, since a
// notification slows down all commits of the server.
//
// [WithPrefetch] claims more jobs than there are slots, for jobs that take about a millisecond.
// Prefetched jobs start before jobs of a higher priority that become due later. A prefetched job
// that expires or is cancelled does not start.
//
// # Caps
//
// An operator can cap how many jobs of a queue, or of all queues, run at once in all workers
// together: [github.com/pgfrontier/worker/ops.Jobs]. A cap counts prefetched jobs. Claims from a
// capped queue take turns, so the queue is slower than others. A cap of 1 runs the jobs of a queue
// one after the other.
//
// For limits of a process, such as memory, use [Hooks]. BeforeClaim skips a claim or adds an SQL
// condition. BeforeHandle takes from a budget, and AfterHandle gives back. Both are called in
// pairs, also if the handler could not be called.
//
// # When a worker dies
//
// A worker shows that it is alive by heartbeats, and by a lock of a database session, which is
// released as soon as the process ends. There is no lease on a job, and nothing is written for a
// job while it runs: a job may take hours.
//
// The leader resets the jobs of a worker that has seemed dead for [WithRescueDelay], 5 seconds by
// default. A job that had started counts a reset, and waits for a random part of a second, which
// doubles with the resets. A job that was only claimed counts none and does not wait. A job that
// kills its workers fails after MaxResets.
//
// A process that is suspended keeps its session. It seems dead after [WithHeartbeatTimeout], 30
// seconds by default. With [LeaderStrategyLease] this time applies to all dead processes. If a
// suspended process comes back, the contexts of its handlers end with [ErrClaimLost], and their
// results have no effect.
//
// While the database does not answer, no job fails for this reason. Claims are retried with
// growing pauses. Outcomes of jobs are kept until they can be stored.
//
// # Timeouts and stop
//
// A handler may run for a minute, unless [Timeout] sets another time. If it ignores the end of its
// context for ten seconds, it is abandoned: the job is retried, and the slot stays taken until the
// handler returns. [observe.JobOverdue] and [observe.JobReturned] report this.
//
// [Worker.Start] runs until its context ends, until [Worker.Stop] is called, or until
// [WithStopAfterJobs] or [WithStopAfter] applies. Then the worker claims no more jobs, releases
// prefetched jobs, and waits for the running jobs, for [WithShutdownTimeout] at most. Choose it
// shorter than the platform's time before SIGKILL.
//
// # Observability, operations and tests
//
// [Worker.Status] is for health checks, [WithObserver] for metrics and alarms, [WithLogger] for
// logs, [WithMiddleware] for tracing. [github.com/pgfrontier/worker/ops.Jobs] has the operations
// of operators. Package [github.com/pgfrontier/worker/workertest] tests handlers. Packages
// [github.com/pgfrontier/worker/jobs/schedule] and [github.com/pgfrontier/worker/jobs/flow] build
// on this one.
//
// # Tables
//
// [github.com/pgfrontier/worker/migrations.ApplyJobs] creates and upgrades the tables.
// They are named after the first, which [WithNames] names:
//
//	jobs                  the unfinished jobs
//	jobs_history          the finished ones, for WithRetention: a week by default
//	jobs_attempts         runs that did not finish their job
//	jobs_logs             what handlers have logged
//	jobs_queues           caps, pauses and retention of queues
//	jobs_workers          one row for each live worker, with its Status
//	jobs_past_workers     the workers that stopped, for 15 minutes
//	jobs_schedules        the next tick of each schedule
//	jobs_flows,           flows: their shapes, runs, steps,
//	jobs_flow_runs,       and which worker advances them
//	jobs_flow_steps, jobs_flow_sweep
//	jobs_once             keys of Once
//	jobs_emitted,         keys of EnqueueFor
//	jobs_emitted_through
//	jobs_operations       the operations of operators
//	jobs_wanted,          the workers' own
//	jobs_leader, jobs_token, jobs_changes, jobs_schema
//
// Enqueueing in plain SQL works: insert kind, args and the columns that differ from their
// defaults. No worker is notified then, so an idle worker finds the job at its next poll.
//
// # Connections, drivers, PgBouncer
//
// A worker keeps one connection for its heartbeats. At times it uses one per queue, at most
// 32 at once, one to settle, and one per running job of RegisterTx. A limited pool must have
// four connections or more. Transactions of handlers leave three of them to the worker and share
// the rest. Call SetMaxIdleConns with the sum: database/sql keeps two idle connections by
// default. [WithNotifyConnectionString] adds one connection outside of the pool, which must not go
// through PgBouncer.
//
// Servers, drivers and PgBouncer are as in package worker, with [LeaderStrategyLease] of this
// package.
//
// # What is guaranteed
//
//   - A job is enqueued if its transaction commits, and only then. No job that was committed is
//     lost. It ends in a state, or waits.
//   - One run finishes a job, even if two workers run it.
//   - Effects in the transaction of RegisterTx, RegisterBatchTx and CompleteTx happen
//     exactly once, if the job completes, and not at all otherwise.
//   - All other effects happen at least once. Make them idempotent, such as by the job's ID.
//   - Claims never exceed a cap. A job does not start after its GoodUntil: neither is it
//     claimed, nor does it begin its transaction of RegisterTx.
//   - A unique key has one unfinished job, and an event one job for each call.
//
// What is not:
//
//   - that a job runs once: a worker that counts as dead may still be running it;
//   - order across priorities, queues and workers, beyond what "Queues, priorities,
//     order" says;
//   - fairness between kinds, tenants or keys within a queue;
//   - after a crash of a server with synchronous_commit off, or the promotion of a
//     standby that lags, the last commits: the jobs of lost commits were
//     not enqueued, or run again.
//
// # What Start returns
//
// Start returns nil after a clean stop. Otherwise its error names the remedy. [ErrUnsettled]: the
// database did not answer during the stop, and some jobs run again. [ErrOutage]: the database could
// not be reached for [WithStartLimit]. The others are as in package worker: [ErrInvalidConfig],
// [ErrAlreadyStarted], [ErrPrivileges], [ErrTransactionPooling], [ErrPreparedStatements],
// [ErrStandby], [ErrHandlerOverdue], [ErrPoolClosed],
// [github.com/pgfrontier/worker/migrations.ErrNotApplied] and
// [github.com/pgfrontier/worker/migrations.ErrNewerVersion].
package jobs
