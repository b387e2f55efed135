package rights

import (
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/tables"
)

// ended are the columns of a job that its history row keeps.
const ended = "id kind queue priority run_at good_until args meta created_at attempt failures resets max_attempts max_resets cancel_at state"

// Columns that several roles name.
const (
	enqueued = "id kind queue priority run_at good_until args meta max_attempts max_resets unique_key until_start" // of a new job
	attempts = "job_id attempt worker_id started_at ended_at outcome code error"
	runs     = "id flow version state key unfinished bad awaited cancel_at created_at finished_at"
)

// flowSteps returns the uses of the table of steps by a role that advances runs. more are the
// further columns of the steps that it adds.
func flowSteps(table ident.Table, more string) uses {
	return uses{
		table:   table,
		reads:   "*",
		inserts: "id name state dependents spec job_id" + more,
		writes:  "state need may_fail blamed job_id finished_at code error result",
		deletes: true,
	}
}

// scheduled returns the uses of the table of schedules by a Scheduler.
func scheduled(table ident.Table) uses {
	return uses{table: table, reads: "name hash next_at last_at paused_at resumed_at", inserts: "name hash next_at", writes: "hash next_at last_at"}
}

// JobsWorker returns the privileges that a worker of jobs needs on the tables of jobs and the
// catalog. lease reports whether the leader has a lease; otherwise it has an advisory lock.
// With either, the leader judges which workers are dead. The leader also reads xmin, which
// shows whether a heartbeat is of the server's incarnation.
func JobsWorker(t tables.Jobs, lease bool) []Need {
	all := []uses{
		{
			table:   t.Jobs,
			reads:   "* ctid",
			writes:  "state attempt failures resets run_at claimed_by claim claimed_at started_at unique_key",
			deletes: true,
		},
		{
			table:   t.History,
			reads:   "id state queue claim code finished_at",
			inserts: ended + " claimed_by claim claimed_at started_at code error result",
			deletes: true,
		},
		{
			table:   t.Attempts,
			reads:   "job_id attempt claim outcome",
			inserts: "job_id attempt claim worker_id started_at outcome code error",
			deletes: true,
		},
		{table: t.Logs, reads: "job_id", inserts: "job_id attempt entry", deletes: true, serial: "id"},
		{table: t.Queues, reads: "name max_running paused_at retention", writes: "max_running"}, // only to lock the row
		{table: t.Wanted, reads: "queue until", inserts: "queue until", writes: "until"},
		{table: t.Once, reads: "key expires_at", writes: "expires_at", deletes: true}, // only to lock the row
		{table: t.Emitted, reads: "emitter position", deletes: true},
		{table: t.FlowSteps, reads: "job_id state"},
		{table: t.EmittedThrough, reads: "emitter position", inserts: "emitter position", writes: "position"},
		{
			table:   t.Workers,
			reads:   "worker_id heartbeat_at status kinds hostname pid build protocol drain_requested_at heartbeat_interval heartbeat_timeout created_at xmin",
			inserts: "worker_id heartbeat_at status kinds hostname pid build protocol heartbeat_interval heartbeat_timeout",
			writes:  "heartbeat_at updated_at status kinds hostname pid build protocol heartbeat_interval heartbeat_timeout",
			deletes: true,
		},
		stopped(t.Stopped),
		{table: t.Token, reads: "only token database xmin", inserts: "only token database", writes: "token database"},
		counted(t.Changes),
		{table: t.Version, reads: "*"},
	}
	if lease {
		all = append(all, leased(t.Leader))
	}
	return append(needsOf(all), catalog()...)
}

// JobsFlows returns the further privileges of a worker that advances runs of flows.
func JobsFlows(t tables.Jobs) []Need {
	return needsOf([]uses{
		{table: t.Jobs, inserts: "id kind queue priority run_at args meta max_attempts max_resets", serial: "id"},
		{table: t.History, reads: "id meta state code error result"},
		{table: t.FlowRuns, reads: "id flow state unfinished bad cancel_at created_at finished_at awaited", writes: "unfinished bad state finished_at", deletes: true},
		flowSteps(t.FlowSteps, ""),
		{table: t.FlowSweep, reads: "only next_at", inserts: "only next_at", writes: "next_at"},
	})
}

// JobsEmitters returns the privileges of a worker of jobs on the tables of consumers. It reads there
// how far their events are settled. A worker does not need them if no consumer enqueues jobs.
func JobsEmitters(t tables.Tables) []Need {
	return needsOf([]uses{
		{table: t.Checkpoints, reads: "consumer_name last_position"},
		{table: t.GapSkips, reads: "consumer_name state gap_position"},
		{table: t.DeadLetters, reads: "consumer_name global_position"},
	})
}

// JobsClient returns the privileges to enqueue jobs, read their outcomes, and cancel them.
func JobsClient(t tables.Jobs) []Need {
	return needsOf([]uses{
		{
			table:   t.Jobs,
			reads:   "*",
			inserts: enqueued,
			writes:  "cancel_at awaited",
			deletes: true,
			serial:  "id",
		},
		{
			table:   t.History,
			reads:   "id kind queue priority run_at good_until state args meta created_at attempt failures resets max_attempts started_at claimed_by finished_at code error result",
			inserts: ended,
		},
		{table: t.Attempts, reads: attempts},
		{table: t.Wanted, reads: "queue until"},
		{table: t.Once, reads: "key job_id hash expires_at", inserts: "key job_id hash expires_at", writes: "job_id hash expires_at"},
		{table: t.Emitted, reads: "emitter position n", inserts: "emitter position n"},
		scheduled(t.Schedules),
		{table: t.Version, reads: "*"}, // for a Scheduler
		{table: t.EmittedThrough, reads: "emitter position", writes: "position"}, // only to lock the row
		counted(t.Changes),
		{table: t.Flows, reads: "name version", inserts: "name version shape"},
		{
			table:   t.FlowRuns,
			reads:   runs,
			inserts: "flow version key unfinished",
			writes:  "awaited cancel_at unfinished bad state finished_at",
			serial:  "id",
		},
		flowSteps(t.FlowSteps, " need may_fail quorum leaf optional list_id"),
	})
}

// JobsScheduler returns the privileges of a Scheduler on the tables of jobs, a part of
// [JobsClient]. If a schedule's jobs have a key of Once, the Scheduler also needs the
// privileges on the table of keys.
func JobsScheduler(t tables.Jobs) []Need {
	return needsOf([]uses{
		scheduled(t.Schedules),
		{
			table:   t.Jobs,
			reads:   "id queue unique_key",
			inserts: enqueued,
			serial:  "id",
		},
		{table: t.Wanted, reads: "queue until"},
		{table: t.Version, reads: "*"},
	})
}

// JobsMarks returns the privileges of ops.Jobs on the rows of workers, and those to acknowledge
// finished jobs. An operator may write no other columns of these tables.
func JobsMarks(t tables.Jobs) []Need {
	return needsOf([]uses{
		{table: t.History, writes: "acknowledged_at"},
		{table: t.Workers, reads: "worker_id heartbeat_at heartbeat_timeout status kinds hostname pid build protocol created_at drain_requested_at", writes: "drain_requested_at"},
	})
}

// JobsOperator returns the privileges of ops.Jobs, without [JobsMarks].
func JobsOperator(t tables.Jobs) []Need {
	return needsOf([]uses{
		{
			table:   t.Jobs,
			reads:   "*",
			inserts: "id kind queue priority run_at good_until args meta max_attempts max_resets",
			writes:  "run_at cancel_at",
			deletes: true,
			serial:  "id",
		},
		{
			table:   t.History,
			reads:   ended + " claimed_by started_at finished_at code error result acknowledged_at",
			inserts: ended,
			deletes: true,
		},
		{table: t.Attempts, reads: attempts, deletes: true},
		{table: t.Logs, reads: "job_id", deletes: true},
		{
			table:   t.Queues,
			reads:   "name max_running paused_at paused_by paused_reason retention",
			inserts: "name",
			writes:  "max_running paused_at paused_by paused_reason retention",
		},
		{table: t.Wanted, reads: "queue until"},
		{table: t.Workers, reads: "kinds status"},
		{table: t.Stopped, reads: "worker_id stopped_at how declared_by hostname pid build started_at"},
		{table: t.FlowSweep, reads: "next_at"},
		{table: t.Schedules, reads: "name next_at last_at paused_at paused_by paused_reason", writes: "paused_at paused_by paused_reason resumed_at", deletes: true},
		{
			table:  t.FlowRuns,
			reads:  runs,
			writes: "cancel_at unfinished bad state finished_at",
		},
		flowSteps(t.FlowSteps, ""),
		{
			table:   t.Operations,
			reads:   "id job_id queue operation detail operator reason created_at",
			inserts: "job_id queue operation detail operator reason created_at",
			serial:  "id",
		},
		counted(t.Changes),
	})
}
