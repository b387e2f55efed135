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
// Packages [github.com/pgfrontier/worker/jobs/schedule] and
// [github.com/pgfrontier/worker/jobs/flow] build on this one.
// [github.com/pgfrontier/worker/workertest] tests handlers.
// [github.com/pgfrontier/worker/ops.Jobs] has the operations of operators.
//
// # Concepts
//
// A job has a kind, which names its handler, and arguments, a Go value that is stored as JSON.
// It is in a queue, has a priority, and is due at a time.
//
// A worker claims due jobs: as many as it has free slots, in one statement. The statement that
// settles a run, which stores its outcome, names the random number of the claim. So a run that was
// taken for dead and comes back finishes nothing.
//
// A run is one execution of a job by a worker. Attempt is the number of claims of a job. A
// failure is a run whose handler returned an error. A reset is a run that was lost with its
// worker.
//
// # Enqueueing
//
// [Client.Enqueue], [Client.EnqueueMany] and, in the Handle of a consumer, [Client.EnqueueFor]
// take a transaction, and the job is part of it. Options of a job: [At], [In], [GoodUntil],
// [Queue], [Priority], [MaxAttempts], [MaxResets], [Unique], [UniqueUntilStart], [Once], [Meta].
// [Wait] waits for the result.
//
// Plain SQL may insert a job, too: kind, args and the columns that differ from their defaults. No
// worker is notified, so an idle worker finds the job at its next poll.
//
// # Handlers and outcomes
//
// [Register], [RegisterTx], [RegisterBatch] and [RegisterBatchTx] add the handler of a
// kind. Options of a registration: [Timeout], [MaxAttempts], [Retry], [Terminal], [OnlyRetry],
// [BatchSize].
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
// When the run must end, the context ends, and [context.Cause] returns [ErrTimeout],
// [ErrCancelled] or [ErrClaimLost]. If a handler of [Register] then returns nil, the job has
// completed all the same, unless the claim is lost. The transaction of [RegisterTx] is rolled
// back with its context, so its job has not completed.
//
// # Transactions
//
// The handler of [RegisterTx] gets a transaction, in which the worker then completes the job. The
// handler runs without a lock on the job, so the job can be cancelled, or given to another worker.
// Of two runs that reach the commit, one commits. [Job.CompleteTx] is for a handler that works for
// long and writes at the end.
//
// The rules for handlers of package worker apply. After SET LOCAL ROLE the worker sets the role
// back before it completes the job. Before CompleteTx the handler must set it back.
//
// If PostgreSQL aborts a transaction for another one (deadlock, serialization failure), the
// transaction runs again at once, up to three times. If the row of the job is locked, the worker
// waits for five seconds. Then it rolls back, and the job runs again. Neither is a failure.
//
// # Queues, priorities, order
//
// [WithQueue] names the queues that a worker serves. A job of a kind without a handler is left for
// another worker. [observe.UnknownKinds] and [Status] name such kinds.
//
// Jobs of a queue start in order of priority (1 first), then of due time, then of ID. Priorities
// are strict among unclaimed jobs: while jobs of priority 1 are due, no claim takes a job of
// priority 2. Jobs run in parallel, so they end in any order. Exception: other jobs may overtake
// a job that becomes visible late, or was released, for about a second. They may do so for
// longer behind hundreds of thousands of jobs without a handler, or while a long transaction
// keeps vacuum from removing dead rows.
//
// SetCap of [github.com/pgfrontier/worker/ops.Jobs] caps how many jobs of a queue run at once in
// all workers together. [Hooks] are for limits of a process, such as memory.
//
// # When a worker dies
//
// A worker shows that it is alive by heartbeats, and by a lock of a database session, which is
// released as soon as the process ends. There is no lease on a job, and nothing is written for a
// job while it runs: a job may take hours.
//
// The leader resets the jobs of a worker that has seemed dead for [WithRescueDelay]. A job that had
// started counts a reset, and waits for a random part of a second, which doubles with the resets. A
// job that was only claimed counts none and does not wait. A job that kills its workers fails after
// MaxResets.
//
// A process that is suspended keeps its session, so it seems dead after [WithHeartbeatTimeout]. With
// [LeaderStrategyLease] this time applies to all dead processes. If a suspended process comes back,
// the contexts of its handlers end with [ErrClaimLost], and their results have no effect.
//
// While the database does not answer, no job fails for this reason. Claims are retried with
// growing pauses. Outcomes of jobs are kept until they can be stored.
//
// # Tables
//
// [github.com/pgfrontier/worker/migrations.ApplyJobs] creates and upgrades the tables.
// They are named after the first, which [WithNames] names:
//
//	jobs                  the unfinished jobs
//	jobs_history          the finished ones, for WithRetention
//	jobs_attempts         runs that did not finish their job
//	jobs_logs             what handlers have logged
//	jobs_queues           caps, pauses and retention of queues
//	jobs_workers          one row for each live worker, with its Status
//	jobs_past_workers     the workers that stopped, for 15 minutes
//	jobs_schedules        the next tick of each schedule
//	jobs_flow*            flows: see package flow
//	jobs_once             keys of Once
//	jobs_emitted,         keys of EnqueueFor
//	jobs_emitted_through
//	jobs_operations       the operations of operators
//	jobs_wanted,          the workers' own
//	jobs_leader, jobs_token, jobs_changes, jobs_schema
//
// # Connections
//
// A worker keeps one connection for its heartbeats. At times it uses one per queue, at most
// 32 at once, one to settle, and one per running job of RegisterTx. A limited pool must have
// four connections or more. Transactions of handlers leave three of them to the worker and share
// the rest. Call SetMaxIdleConns with the sum: database/sql keeps two idle connections by
// default. [WithNotifyConnectionString] adds one connection outside of the pool.
//
// Servers and drivers are as in package worker, and PgBouncer as in docs/operations.md, with
// [LeaderStrategyLease] of this package.
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
package jobs
