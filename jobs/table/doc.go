// Package table runs durable jobs that are rows of a table of your own. You enqueue a
// job by an INSERT, with the columns that you need. Any number of processes run the
// rows, each row on one of them, until it has completed or failed for good.
//
//	store := table.NewStore(db, table.Options[ExampleJob]{
//		TableName:         "example_jobs j",
//		ViewName:          "example_jobs_with_repository_name j",
//		ColumnExpressions: []string{"j.id", "j.repository_id", "j.repository_name"},
//		Scan: func(row table.Row) (e ExampleJob, err error) {
//			return e, row.Scan(&e.ID, &e.RepositoryID, &e.RepositoryName)
//		},
//		OrderByExpression: "j.repository_id, j.id",
//		MaxNumRetries:     5,
//		RetryAfter:        time.Minute,
//	})
//	err := table.NewWorker(store, table.Handler[ExampleJob]{
//		Handle: func(ctx context.Context, j *table.Job[ExampleJob]) error { return index(ctx, j.Record) },
//	}, table.WorkerOptions{NumHandlers: 20}).Start(ctx)
//
// Those who know the dbworker of Sourcegraph's workerutil find its columns, states and
// options here. Package [github.com/pgfrontier/worker/jobs] has tables of its own, and
// does more: queues, caps, unique keys, schedules, results. Choose this one if there is
// a table of jobs already, or if a job is a row that other queries read.
//
// # The table
//
// A worker needs these columns, under these names or others (AlternateColumnNames), and
// leaves all others alone:
//
//	CREATE TABLE example_jobs (
//		id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
//		state             text NOT NULL DEFAULT 'queued',
//		failure_message   text,
//		queued_at         timestamptz DEFAULT now(),
//		started_at        timestamptz,
//		last_heartbeat_at timestamptz,
//		finished_at       timestamptz,
//		process_after     timestamptz,
//		num_resets        integer NOT NULL DEFAULT 0,
//		num_failures      integer NOT NULL DEFAULT 0,
//		execution_logs    json[],
//		worker_hostname   text NOT NULL DEFAULT '',
//		cancel            boolean NOT NULL DEFAULT false,
//
//		repository_id     integer NOT NULL -- and what else a job is about
//	);
//
// Names have letters, digits and underscores. The id is any integer and unique; state is
// text or an enum; failure_message and worker_hostname are text or a varchar, which for the
// latter has room for the name of the machine and 37 characters; execution_logs is json[]
// or jsonb[]. Store.Check and Start say what does not fit, and how to mend it. Nothing is
// ever migrated.
//
// There are no tables beside it, no leader and no session locks.
//
// A partitioned table works if it is partitioned by the id: only then can the id be
// unique. A table with children by inheritance has their rows, too. No index keeps their
// ids apart: take them from one sequence.
//
// # Indexes
//
// Two are enough. The first has the columns of OrderByExpression, for claims. The second
// is small, for what runs:
//
//	CREATE INDEX ON example_jobs (repository_id, id) WHERE state IN ('queued', 'errored');
//	CREATE INDEX ON example_jobs (id) WHERE state = 'processing';
//
// Without retries the first may have WHERE state = 'queued'. Do not put
// last_heartbeat_at into an index: each heartbeat would write there, too. Claims walk
// over rows at the front of the order that are due later, or that a condition leaves
// out, so do not keep many of these there. Where many rows finish, lower the table's
// fillfactor (70) and autovacuum_vacuum_scale_factor (0.02).
//
// # States
//
//	queued ── claim ──> processing ──> completed, failed, canceled
//	   ▲                    │    └───> errored ── RetryAfter later: claim
//	   └── reset, requeue ──┘
//
// A row in queued is due at process_after, at once if that is NULL; one in errored
// RetryAfter after its finished_at, at once if that is NULL. All times are the database's.
//
// What becomes of a job:
//
//	its handler                     the row
//	------------------------------  ----------------------------------------------
//	returns nil                     completed
//	returns an error                errored, or failed at MaxNumRetries; a failure
//	panics, calls Goexit, or is     likewise
//	  over MaximumRuntimePerJob
//	returns NonRetryable(err)       failed; a failure
//	returns RequeueAfter(d)         queued, due in d; not a failure
//	returns an error, and cancel    canceled, whatever the error; not a failure
//	  is set
//	is lost with its worker         queued; a reset. At MaxNumResets failed
//	outlives a stop                 queued; not a failure
//
// MaxNumRetries counts failures, the first one included: 3 is two retries. A job that
// returns nil has completed, also if cancel is set: it has happened. One that is
// cancelled before it begins is canceled without its handler.
//
// A row that Scan refuses, or on which the view or an expression fails, has a failure.
// A row that the view does not show is queued again, with a failure_message that says
// so: due in ten seconds, and then in as long again as since queued_at, an hour at most.
// It counts nothing, and runs when the view shows it. Neither holds up others.
//
// A row that the table refuses to have in the state that it should have, because of a
// CHECK or a trigger of yours, has failed with the server's words. If failed is refused,
// too, it stalls.
//
// # Claims
//
// A worker claims rows for all free handlers in one statement, the first ones by
// OrderByExpression that nobody holds. The next statement reads them from the view: no
// expression sees what was before the claim.
//
// OrderByExpression, Condition and the conditions of PreDequeue are about columns of the
// table, with its alias. What the view joins, a subquery can have: "(SELECT r.rank FROM
// repo AS r WHERE r.id = j.repository_id)", which no index helps to sort by.
//
// A row that the table refuses to have in processing, because of a CHECK, a trigger or a
// policy of yours, is left out of claims, for a second first and a minute at most. Likewise
// one that cannot be reset or have a heartbeat: without heartbeats it seems lost. A BEFORE
// UPDATE trigger that returns NULL refuses a row, too. [observe.TableFailed] names the row,
// [Status] why, and the others go on. More than 1000 such rows hold claims up, as does a
// row on which the order or a condition fails.
//
// [Handler].PreDequeue holds claims back or adds a condition, under which one row is
// claimed at a time. With PreHandle and PostHandle it makes a budget: see the example of
// [Handler].
//
// # One run finishes a job
//
// A claim writes the worker into worker_hostname, as name/ID, and the microsecond into
// started_at. Every statement that changes a row for a run names both, and the id. So a
// run whose row was reset, requeued, claimed again or removed changes nothing, whatever
// it believes. Its context ends with [ErrClaimLost] at the next heartbeat, and
// [observe.JobLost] reports it.
//
// Effects outside of the row happen at least once: make them idempotent. Those in the
// same database can be one with the end of the job: [Job.CompleteTx].
//
// # When a worker dies
//
// Each worker writes last_heartbeat_at of all its rows in one statement, every
// HeartbeatInterval. Every worker looks for rows whose heartbeat is older than
// StalledMaxAge, and resets them: queued, num_resets one more, due in a random part of a
// second that doubles with each reset. So a job that kills its worker soon does it
// alone. After MaxNumResets resets it has failed, with ResetFailureMessage.
//
// A heartbeat is old by the database's clock, and it must not have come while the worker
// has watched the row for half of StalledMaxAge: after an outage of the database, all
// heartbeats are old and all workers live. A lost job runs again within one and a
// quarter of StalledMaxAge.
//
// A worker that lives may still seem lost: it stands still, or its database is too slow
// for heartbeats. Then its jobs run twice, and finish once: the run that has the row at
// the end. If that happens, raise StalledMaxAge. Give all stores of a table the same: the
// worker with the shortest one takes the rows of others for lost.
//
// No statement waits for a row's lock. A transaction of yours that holds a row keeps
// neither heartbeats nor ends of others back; its own row has no heartbeat meanwhile, and
// is not reset. One that is held for longer than StalledMaxAge may be reset right after.
//
// While the database does not answer, no job fails because of it: ends are kept, and
// stored when it is back.
//
// A standby may be promoted while the old primary goes on, and new connections lead to
// one, old ones to the other. Every HeartbeatInterval a worker compares when the server of
// its heartbeats was started with that of another connection. If they differ, or the heartbeats
// have moved to another server, it closes the connections that are idle. HeartbeatError of
// [Status] says that they differ.
//
// # Stop
//
// [Worker.Start] runs until its context ends, [Worker.Stop] is called, after
// NumTotalJobs or MaxActiveTime. Then it stops claiming, and waits for the jobs that
// run, for ShutdownTimeout at most. Then their contexts end, and they are queued again
// uncounted. Give it less than the platform does before SIGKILL.
//
// A handler has ten seconds to return after its context has ended. Then it is given up:
// its job goes on elsewhere, and its slot stays taken until it returns. The same goes for
// the hooks of [Handler]; Scan has ten seconds in all.
//
// # Connections, drivers, PgBouncer
//
// A worker keeps one connection for heartbeats, and uses one to claim, one to settle and
// one to reset now and then. A pool that is limited must have three or more, and more
// for handlers that use it. Call SetMaxIdleConns: database/sql keeps two by default.
//
// PostgreSQL 13 or later; pgx through github.com/jackc/pgx/v5/stdlib, in every query
// mode, or lib/pq. Nothing is bound to a session, so it works behind PgBouncer with
// transaction pooling: with a driver that sends a statement and its values in one go,
// such as pgx with default_query_exec_mode=exec. Start refuses one that does not.
//
// A worker's role needs SELECT and UPDATE of the table's columns above, and SELECT of
// what the view and the expressions read. Start names the GRANTs that lack.
//
// Row-level security of the table may hide rows from the role, such as those of other
// tenants: the worker works on the rows that it sees. Start refuses a table without a policy
// that lets the role SELECT and UPDATE, as such a worker would idle.
//
// # What Start returns
//
// Start returns nil after a clean stop. Otherwise its error says what to mend, and can be told
// apart, as [errors.Is] does:
//
//   - [ErrInvalidConfig], [ErrAlreadyStarted]: the program is wrong;
//   - [ErrOutage]: the database could not be reached for StartLimit;
//   - [ErrUnfit]: the table or the view is missing, or not as a worker needs it;
//   - [ErrPrivileges]: the role lacks privileges;
//   - [ErrPreparedStatements]: a proxy breaks the driver's statements;
//   - [ErrStandby]: the server takes no writes;
//   - [ErrHandlerOverdue]: a handler ignores the end of its context;
//   - [ErrPoolClosed]: the program has closed db before;
//   - [ErrUnsettled]: the database did not answer at the end, and some jobs run again.
//
// [ErrInvalidConfig], [ErrOutage], [ErrPrivileges], [ErrStandby] and [ErrPreparedStatements] are the
// same variables as those of packages worker, jobs and jobs/schedule, where these have them.
// The other errors are each package's own.
//
// # What is not guaranteed
//
//   - that a job runs once: see "When a worker dies";
//   - order: rows are claimed in order and run side by side, and a row that becomes due
//     late comes late;
//   - after a crash of a server with synchronous_commit off, or the promotion of a
//     standby that lags, what their last commits were: jobs run again, or were never
//     enqueued.
package table

import ()
