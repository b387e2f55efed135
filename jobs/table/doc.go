// Package table runs durable jobs that are rows of a table of your own. You enqueue a job by an
// INSERT, with the columns that you need. Any number of processes run the rows, a row on one
// of them, until the row has completed or failed for good.
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
// The columns, states and options are those of dbworker of Sourcegraph's workerutil. Package
// [github.com/pgfrontier/worker/jobs] has tables of its own, and does more: docs/guide.md has the
// choice, docs/jobs.md the queries and alarms.
//
// # The table
//
// A worker needs these columns, and leaves all others alone:
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
//		repository_id     integer NOT NULL -- and the data of the job
//	);
//
// Names have letters, digits and underscores. The id is a unique integer of any size. state is
// text or an enum. failure_message and worker_hostname are text or a varchar, with room for the
// name of the machine and 37 characters. execution_logs is json[] or jsonb[]. [Store.Check] reports
// what does not fit. The package does not migrate the table. It needs no other tables, no leader
// and no session locks.
//
// A partitioned table must be partitioned by the id. If a table has children by inheritance, take
// all ids from one sequence.
//
// # Indexes
//
// One with the columns of OrderByExpression for claims, and a small one for running rows:
//
//	CREATE INDEX ON example_jobs (repository_id, id) WHERE state IN ('queued', 'errored');
//	CREATE INDEX ON example_jobs (id) WHERE state = 'processing';
//
// Without retries the first index may have WHERE state = 'queued'. Do not put last_heartbeat_at
// into an index: heartbeats would write to it. Claims also read the rows at the front of the
// order that are due later, or that a condition leaves out. If many rows finish, lower the
// table's fillfactor (70) and autovacuum_vacuum_scale_factor (0.02).
//
// # States
//
//	queued ── claim ──> processing ──> completed, failed, canceled
//	   ▲                    │    └───> errored ── RetryAfter later: claim
//	   └── reset, requeue ──┘
//
// A row in queued is due at process_after, or at once if process_after is NULL. A row in errored is due
// RetryAfter after its finished_at, or at once if finished_at is NULL. All times are the database's.
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
// A job that returns nil has completed, even if cancel is set. A job that is cancelled before it
// begins is canceled without a call of its handler.
//
// If Scan, the view or an expression fails on a row, the row has a failure. A row that the view
// does not show is queued again, with a failure_message that says so. It is due in ten seconds,
// and then after as long again as it has waited, an hour at most. This counts no failure.
//
// A CHECK or a trigger of yours may refuse the new state of a row. Then the row has failed, with
// the server's error text. If the table refuses failed too, the row stalls.
//
// # Claims
//
// A worker claims rows for all free handlers in one statement: the first unlocked rows by
// OrderByExpression. The next statement reads the rows from the view, so no expression sees data
// from before the claim.
//
// OrderByExpression, Condition and the conditions of PreDequeue are about columns of the table,
// with its alias. A subquery can read data that the view joins: "(SELECT r.rank FROM repo AS r
// WHERE r.id = j.repository_id)". No index helps to sort by such a subquery.
//
// A CHECK, a policy, or a BEFORE UPDATE trigger that returns NULL, may refuse a claim, a reset or
// a heartbeat of a row. Claims leave out such a row, for a second first and for a minute at most.
// [observe.StatementFailed] names the row, [Status] the reason. More than 1000 such rows block claims,
// and so does a row on which the order or a condition fails.
//
// # One run finishes a job
//
// A claim writes the worker into worker_hostname, as name/ID, and the microsecond into
// started_at. A statement that changes a row for a run names both, and the id. So a run changes
// nothing if its row was reset, requeued, claimed again or removed. The context of such a run ends
// with [ErrClaimLost] at the next heartbeat.
//
// Effects outside of the row happen at least once: make them idempotent. Effects in the same
// database can be exactly once: [Job.CompleteTx].
//
// # When a worker dies
//
// All workers check for rows whose heartbeat is older than StalledMaxAge, and reset them. A reset row
// is queued, with num_resets one more. It is due in a random part of a second, which doubles with
// the resets. So a job that kills its worker soon runs alone.
//
// After an outage of the database, all heartbeats are old and all workers live. So a worker resets
// a row only if it has seen no heartbeat of the row for half of StalledMaxAge. A lost job runs
// again within one and a quarter of StalledMaxAge.
//
// A live worker may seem lost if its process is suspended, or if its database is too slow for
// heartbeats. Then its jobs run twice, and finish once. If this happens, raise StalledMaxAge.
//
// No statement waits for a row's lock. A locked row gets no heartbeat and is not reset. A row that
// is locked for longer than StalledMaxAge may be reset right after.
//
// While the database does not answer, no job fails for this reason. Outcomes are kept, and stored
// when the database is back.
//
// A standby may be promoted while the old primary goes on. At HeartbeatInterval a worker compares
// the start time of the heartbeats' server with that of another connection's server. If they
// differ, or the heartbeats have moved to another server, the worker closes idle connections.
// HeartbeatError of [Status] reports the difference.
//
// # Connections, privileges
//
// A worker keeps one connection for heartbeats. At times it uses one more to claim, one to settle
// and one to reset. A limited pool must have three connections or more, and more for handlers
// that use it. Call SetMaxIdleConns: database/sql keeps two idle connections by default.
//
// The package works behind PgBouncer with transaction pooling. Servers and drivers are those of
// package worker.
//
// The role of a worker needs SELECT and UPDATE of the table's columns above, and SELECT of the
// relations that the view and the expressions read. Row-level security may hide rows from the role,
// such as the rows of other tenants. Start refuses a table without a policy that lets the role
// SELECT and UPDATE.
//
// # What is not guaranteed
//
//   - that a job runs once;
//   - order: rows are claimed in order and run in parallel, and a row that becomes due
//     late is claimed late;
//   - after a crash of a server with synchronous_commit off, or the promotion of a
//     standby that lags, the last commits: jobs run again, or were not
//     enqueued.
package table
