// Package jobs runs durable jobs on PostgreSQL. An application enqueues a job in the
// transaction that makes it necessary. Any number of processes run it, each job on one
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
// A job has a kind, which names its handler, and arguments, a Go value that is stored
// as JSON. It is in a queue, has a priority, and is due at a time.
//
// A worker claims jobs that are due: it takes as many as it has free slots, in one
// statement, and runs their handlers. A claim is a random number. The statement that
// ends a run must name it, so only the run that has the job can finish it. A run that
// was taken for dead and comes back finishes nothing.
//
// A run is what a worker does with a job that it has claimed. Attempt numbers the
// claims of a job. A failure is a run whose handler returned an error. A reset is a run
// that was lost with its worker. To settle a run is to store how it has ended.
//
// Unfinished jobs are in one table, finished ones in another. So the table that every
// worker claims from stays small, however many jobs have finished.
//
// # Enqueueing
//
// [Client.Enqueue] takes a transaction, and the job is part of it: workers see it at
// the commit, and after a rollback it was never enqueued. Without a transaction (nil)
// the job is enqueued at once. [Client.EnqueueMany] enqueues thousands in few
// statements: all or none.
//
// The options of a job:
//
//   - [At], [In]: when it is due, by the database's clock; at once by default;
//   - [Queue], [Priority]: where it waits; [DefaultQueue] and 5 by default;
//   - [GoodUntil]: a job that does not run by then expires, also between attempts;
//   - [MaxAttempts], [MaxResets]: how often it may fail, 15 by default, and how many
//     workers may be lost while they run it, 5 by default;
//   - [Unique], [UniqueUntilStart], [Once]: see "Keys";
//   - [Meta]: anything beside the arguments, such as a trace.
//
// Arguments are bounded by [MaxArgs]. A rolling deployment runs old and new programs at
// once: add fields, and give a new kind to arguments whose meaning changes.
//
// # Handlers and outcomes
//
// [Register], [RegisterTx], [RegisterBatch] and [RegisterBatchTx] add the handler of a
// kind. The options of a registration: [Timeout], [MaxAttempts], [Retry], [Terminal],
// [OnlyRetry], [BatchSize]. MaxAttempts of a job goes before that of its handler.
//
// What becomes of a job:
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
// An error has a code if it, or one that it wraps, has a method Code() string. The code
// is stored with the text of the error. If the error is the handler's own and its code is one of
// the worker's, APP_ is put in front: see [CodePanic]. [Info.Attempts] has the latest hundred
// runs that did not finish the job; of those a thousand are kept.
//
// [Exponential], the default, doubles the pause from 15 seconds to a day: 15 attempts
// take about three days. [Steps] and [Fixed] are others, and any function of the number
// of failures and the error will do.
//
// In a handler, [Job.SetResult] stores a result, and [Job.Log] keeps entries for
// [Client.Logs]. The context ends when the run must: [context.Cause] tells
// [ErrTimeout], [ErrCancelled] and [ErrClaimLost] apart. A handler of [Register] that
// returns nil has completed its job, even then, unless the claim is lost. The transaction of
// [RegisterTx] is gone with its context, so there the job has not completed.
//
// # Transactions
//
// The handler of [RegisterTx] is given a transaction. After it has returned nil, the
// worker completes the job in that transaction and commits it. What the handler wrote
// and the end of the job are one: they happen exactly once. After an error all of it is
// rolled back. No lock of the job is held meanwhile, so it can be cancelled, and given
// to another worker. Of two runs that come to the commit, one commits.
//
// The rules are those of package worker's consumers. Run every statement through the
// transaction. Do not end it: the job then fails with TX_ENDED, since what it wrote may
// stay. Use SET LOCAL, not SET. Pass the context on. After SET LOCAL ROLE the worker itself sets
// the role back before it completes the job. Before [Job.CompleteTx] set it back yourself.
//
// A transaction that PostgreSQL sacrifices (deadlock, serialization failure) runs again
// at once, up to three times, and is no failure. If somebody has locked the job's row, the
// worker waits for five seconds. Then it rolls back, and the job runs again; that is no
// failure either.
//
// [Job.CompleteTx] completes a job in a transaction of the handler's own, for a handler
// that works first and writes last.
//
// The effects of any other handler, and all effects elsewhere (mail, HTTP, another
// database), happen at least once. Make them idempotent, by the job's ID for one.
//
// # Batches
//
// A handler of [RegisterBatch] takes the jobs of its kind that one claim has brought,
// up to BatchSize. A batch takes a slot for each job: to fill batches of 500, give the
// queue 500 slots or more. What the handler returns is the outcome of all jobs but
// those that it has given one with [Job.Settle].
//
// After an error or a panic, the jobs without an outcome of their own run again in two
// halves, and so on, until the error is one job's. So a poison job counts its failures,
// and its mates complete. What [Fail], [RetryAfter], [Snooze] and [Discard] make is the
// outcome of all.
//
// The Timeout bounds each call, and is a failure of all its jobs. Jobs that have failed
// run in batches of a quarter for each failure, so a job that makes every batch hang is
// alone after a few. The context does not end when one of the jobs is cancelled: that
// job ends with its batch.
//
// # Queues, priorities, order
//
// [WithQueue] says which queues a worker serves, and with how many slots each. Without
// it, a worker has ten slots for [DefaultQueue]. [WithConcurrency] bounds all together, and
// [WithQueuePriority] says which of them get these slots first. [WithClaimBatch] bounds what one
// claim takes. Each queue is claimed from by itself: a full one does not hold up others. A job of a
// kind without a handler is left for another worker; [observe.UnknownKinds] and
// [Status] name such kinds.
//
// Jobs of a queue start in order of priority (1 first), then of the time they are due,
// then of ID. There is one exception. A job that becomes visible late, because its
// transaction committed late or it was given back, may be overtaken for about a second,
// or longer behind hundreds of thousands of jobs without a handler, or while a long
// transaction keeps vacuum from removing dead rows.
// Priorities are strict among jobs that nobody has claimed: while jobs of priority 1 are due,
// no claim takes one of 2. With [WithPrefetch], what a worker has claimed ahead starts before
// jobs of a higher priority that become due later. Jobs run side by side, so they end in any
// order.
//
// An idle worker looks for jobs each [WithPollInterval], a second by default, and
// starts those with a later time at that time. [WithMaxPollInterval] lets it look more seldom while
// it finds nothing. With [WithNotifyConnectionString] it is
// told of new jobs, and of those that are given back, within milliseconds. Those who enqueue notify only while a worker
// of the queue is idle: a notification costs every commit of the server.
//
// [WithPrefetch] claims more jobs than there are slots, for jobs that take a
// millisecond. Leave it out where priorities matter more than that. A prefetched job that expires or is cancelled does not start, and a stop
// gives it back.
//
// # Caps
//
// An operator caps how many jobs of a queue run at once in all workers together, or of
// all queues: [github.com/pgfrontier/worker/ops.Jobs]. A cap is never exceeded by
// claims, prefetched jobs included. Claims from a capped queue take turns, so it is
// slower than others. A cap of 1 runs the jobs of a queue one after the other.
//
// For limits of a process, such as memory, [Hooks.BeforeClaim] leaves a claim out or
// adds an SQL condition, BeforeHandle takes of a budget, and AfterHandle gives back. They come
// in pairs, also if the handler could not be called.
//
// # When a worker dies
//
// Workers show that they live by a heartbeat, and by a lock of a database session that
// is gone as soon as the process is. There is no lease on a job, and nothing is written
// for a job that runs: it may take hours.
//
// One of the workers leads. It gives back the jobs of a worker that has seemed dead for
// [WithRescueDelay], 5 seconds by default: one that has only lost its connection is
// back sooner. A job that had started counts a reset, and waits for a random part of a
// second, which doubles with each reset; one that was only claimed does neither. A job
// that takes its worker along each time fails after MaxResets.
//
// A process that stands still keeps its session: it seems dead after
// [WithHeartbeatTimeout], 30 seconds by default. With [LeaderStrategyLease] that is so
// for every process that died. When one comes back, the contexts of its handlers end
// with [ErrClaimLost], and nothing that they return counts.
//
// While the database does not answer, no job fails because of it. Claims are tried
// again at growing pauses, and what became of jobs is kept until it can be stored.
//
// # Timeouts and stop
//
// A handler has a minute, unless [Timeout] says otherwise. Then its context ends. Ten
// seconds later it is given up: its job is tried again, and the slot stays taken until
// the handler returns. [observe.JobOverdue] and [observe.JobReturned] report it.
//
// [Worker.Start] runs until its context ends, [Worker.Stop] is called, or after
// [WithStopAfterJobs] or [WithStopAfter]. Then it claims nothing more, gives prefetched
// jobs back, and waits for those that run, for [WithShutdownTimeout] at most. Then
// their contexts end, and they are given back uncounted. Give it less than the platform
// does before SIGKILL.
//
// # Keys
//
// [Unique] keeps a key from being enqueued twice while an unfinished job has it. The
// second Enqueue returns the first job, with [Enqueued.Existing]. [UniqueUntilStart]
// frees the key when the job starts: choose it if the job reads what others change
// meanwhile, such as a search index. A job that fails after its start does not take the
// key back. [Once] keeps a key for a time, whatever becomes of its job: choose it for
// requests that are sent again.
//
// Two transactions that enqueue the same key wait for each other, until the first ends.
//
// # Waiting
//
// [Wait] waits for the end of a job and returns its result, or a [FailedError]. Wait
// after the commit of the transaction that enqueued the job: before it, there is no
// such job. [Client.Get] returns all that is known of a job. [Client.Cancel] ends one.
//
// # From a consumer of events
//
// [Client.EnqueueFor] enqueues jobs in the Handle of a consumer of package worker. The
// job and the checkpoint are one transaction. The event and the number of the call are
// a key, so a consumer that is reset enqueues nothing twice, and an event that comes
// late is not missed. Keys are removed once the consumer is past them;
// [WithCheckpointsTable] tells where its tables are if they have other names.
//
// # Schedules
//
// Package [github.com/pgfrontier/worker/jobs/schedule] enqueues a job for each tick of a
// schedule, on any number of processes.
//
// # Flows
//
// Package [github.com/pgfrontier/worker/jobs/flow] runs jobs that depend on each other.
//
// # Operations
//
// [github.com/pgfrontier/worker/ops.Jobs] pauses, caps and lists queues, cancels,
// retries, reruns and discards jobs, and acknowledges those that failed; each operation
// leaves a record. [Worker.Status] is for health checks, [WithObserver] for metrics and
// alarms, [WithLogger] for logs, [WithMiddleware] for tracing. Package
// [github.com/pgfrontier/worker/workertest] tests handlers.
//
// # Tables
//
// [github.com/pgfrontier/worker/migrations.ApplyJobs] creates and upgrades the tables.
// They are named after the first, which [WithTable] names:
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
//	jobs_flow_runs,       and whose turn it is to look after them
//	jobs_flow_steps, jobs_flow_sweep
//	jobs_once             keys of Once
//	jobs_emitted,         keys of EnqueueFor
//	jobs_emitted_through
//	jobs_operations       what operators have done
//	jobs_wanted,          the workers' own
//	jobs_leader, jobs_token, jobs_changes, jobs_schema
//
// Enqueueing in plain SQL works: insert kind, args and what else differs from the
// default. Nobody is notified then, so an idle worker finds the job at its next poll, within
// WithMaxPollInterval.
//
// # Connections, drivers, PgBouncer
//
// A worker keeps one connection for its heartbeats. It needs one for each queue now and
// then, for 32 queues at once at most, one to settle, and one for each job of RegisterTx that runs. A pool that is
// limited must have four or more: transactions of handlers leave three alone and take
// turns with the rest. Call SetMaxIdleConns with all of these together: database/sql
// keeps two by default, and opens and closes the others again and again.
// [WithNotifyConnectionString] adds one connection outside of the pool.
//
// PostgreSQL 13 or later; pgx through github.com/jackc/pgx/v5/stdlib, in every query
// mode, or lib/pq. Behind PgBouncer nothing changes with session pooling. With
// transaction pooling use [LeaderStrategyLease] and a driver that sends a statement and
// its values in one go, such as pgx with default_query_exec_mode=exec; Start refuses
// what cannot work. The connection that listens must not go through it.
//
// # What is guaranteed
//
//   - No job that was committed is lost. It ends in a state, or waits.
//   - One run finishes a job, whatever two workers believe.
//   - Effects in the transaction of RegisterTx, RegisterBatchTx and CompleteTx happen
//     exactly once, if the job completes, and not at all otherwise.
//   - All other effects happen at least once.
//   - A cap is not exceeded, and a job does not start after its GoodUntil: neither is it
//     claimed, nor does it begin its transaction of RegisterTx.
//   - A unique key has one unfinished job, and an event one job for each call.
//
// What is not:
//
//   - that a job runs once: a worker that is taken for dead may still be running it;
//   - order across priorities, queues and workers, beyond what "Queues, priorities,
//     order" says;
//   - fairness between kinds, tenants or keys within a queue;
//   - after a crash of a server with synchronous_commit off, or the promotion of a
//     standby that lags, what their last commits were: the jobs of lost commits were
//     never enqueued, or run again.
//
// # What Start returns
//
// Start returns nil after a clean stop. Otherwise its error says what to mend, and can be told
// apart, as [errors.Is] does:
//
//   - [ErrInvalidConfig], [ErrAlreadyStarted]: the program is wrong;
//   - [ErrOutage]: the database could not be reached for [WithStartLimit];
//   - [github.com/pgfrontier/worker/migrations.ErrNotApplied],
//     [github.com/pgfrontier/worker/migrations.ErrNewerVersion]: the tables are missing or
//     older than the program, or newer;
//   - [ErrPrivileges]: the role lacks privileges;
//   - [ErrTransactionPooling], [ErrPreparedStatements]: a proxy breaks what the worker needs;
//   - [ErrStandby]: the server takes no writes;
//   - [ErrHandlerOverdue]: a handler ignores the end of its context;
//   - [ErrPoolClosed]: db was closed too early;
//   - [ErrUnsettled]: the database did not answer at the end, and some jobs run again.
//
// [ErrInvalidConfig], [ErrOutage], [ErrPrivileges], [ErrStandby], [ErrTransactionPooling] and
// [ErrPreparedStatements] are the same variables as those of packages worker, jobs/table and
// jobs/schedule, where these have them. The other errors are each package's own.
package jobs
