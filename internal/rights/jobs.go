package rights

import "github.com/pgfrontier/worker/internal/tables"

// ended are the columns that a job takes along into the history.
const ended = "id kind queue priority run_at good_until args meta created_at attempt failures resets max_attempts max_resets cancel_at state"

// JobsWorker returns what a worker of jobs needs of the tables of jobs and of the
// catalog, if its leader has a lease, or else an advisory lock. Either judges who is
// dead, for which xmin tells whether a heartbeat is of the server's incarnation.
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
		{table: t.Queues, reads: "name max_running paused_at retention", writes: "max_running"}, // it only locks the row
		{table: t.Wanted, reads: "queue until", inserts: "queue until", writes: "until"},
		{table: t.Once, reads: "key expires_at", writes: "expires_at", deletes: true}, // it only locks the row
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
		{table: t.Changes, reads: "only count", inserts: "only count", writes: "count"},
		{table: t.Version, reads: "*"},
	}
	if lease {
		all = append(all, uses{
			table:   t.Leader,
			reads:   "name worker_id term acquired_at expires_at",
			inserts: "name worker_id term acquired_at expires_at",
			writes:  "worker_id term acquired_at expires_at",
		})
	}
	return append(needsOf(all), catalog()...)
}

// JobsFlows returns what a worker needs besides to advance runs of flows.
func JobsFlows(t tables.Jobs) []Need {
	return needsOf([]uses{
		{table: t.Jobs, inserts: "id kind queue priority run_at args meta max_attempts max_resets", serial: "id"},
		{table: t.History, reads: "id meta state code error result"},
		{table: t.FlowRuns, reads: "id flow state unfinished bad cancel_at created_at finished_at awaited", writes: "unfinished bad state finished_at", deletes: true},
		{
			table:   t.FlowSteps,
			reads:   "*",
			inserts: "id name state dependents spec job_id",
			writes:  "state need may_fail blamed job_id finished_at code error result",
			deletes: true,
		},
		{table: t.FlowSweep, reads: "only next_at", inserts: "only next_at", writes: "next_at"},
	})
}

// JobsEmitters returns what a worker of jobs needs of the consumers' tables, to know
// how far their events are settled. It does without where none enqueues jobs.
func JobsEmitters(t tables.Tables) []Need {
	return needsOf([]uses{
		{table: t.Checkpoints, reads: "consumer_name last_position"},
		{table: t.GapSkips, reads: "consumer_name state gap_position"},
		{table: t.DeadLetters, reads: "consumer_name global_position"},
	})
}

// JobsClient returns what needs who enqueues jobs, looks what becomes of them, and
// cancels them.
func JobsClient(t tables.Jobs) []Need {
	return needsOf([]uses{
		{
			table:   t.Jobs,
			reads:   "*",
			inserts: "id kind queue priority run_at good_until args meta max_attempts max_resets unique_key until_start",
			writes:  "cancel_at awaited",
			deletes: true,
			serial:  "id",
		},
		{
			table:   t.History,
			reads:   "id kind queue priority run_at good_until state args meta created_at attempt failures resets max_attempts started_at claimed_by finished_at code error result",
			inserts: ended,
		},
		{table: t.Attempts, reads: "job_id attempt worker_id started_at ended_at outcome code error"},
		{table: t.Wanted, reads: "queue until"},
		{table: t.Once, reads: "key job_id hash expires_at", inserts: "key job_id hash expires_at", writes: "job_id hash expires_at"},
		{table: t.Emitted, reads: "emitter position n", inserts: "emitter position n"},
		{table: t.Schedules, reads: "name hash next_at last_at paused_at resumed_at", inserts: "name hash next_at", writes: "hash next_at last_at"},
		{table: t.Version, reads: "*"},                                           // of a Scheduler
		{table: t.EmittedThrough, reads: "emitter position", writes: "position"}, // it only locks the row
		{table: t.Changes, reads: "only count", inserts: "only count", writes: "count"},
		{table: t.Flows, reads: "name version", inserts: "name version shape"},
		{
			table:   t.FlowRuns,
			reads:   "id flow version state key unfinished bad awaited cancel_at created_at finished_at",
			inserts: "flow version key unfinished",
			writes:  "awaited cancel_at unfinished bad state finished_at",
			serial:  "id",
		},
		{
			table:   t.FlowSteps,
			reads:   "*",
			inserts: "id name state need may_fail quorum leaf optional list_id dependents spec job_id",
			writes:  "state need may_fail blamed job_id finished_at code error result",
			deletes: true,
		},
	})
}

// JobsScheduler returns what a Scheduler needs of the tables of jobs: a part of what
// [JobsClient] returns. The jobs of a schedule whose options name a key of Once need that of
// the table of keys besides.
func JobsScheduler(t tables.Jobs) []Need {
	return needsOf([]uses{
		{table: t.Schedules, reads: "name hash next_at last_at paused_at resumed_at", inserts: "name hash next_at", writes: "hash next_at last_at"},
		{
			table:   t.Jobs,
			reads:   "id queue unique_key",
			inserts: "id kind queue priority run_at good_until args meta max_attempts max_resets unique_key until_start",
			serial:  "id",
		},
		{table: t.Wanted, reads: "queue until"},
		{table: t.Version, reads: "*"},
	})
}

// JobsMarks returns what needs who does what ops.Jobs does, of the workers' rows and to mark
// finished jobs. The columns are all that it may write there.
func JobsMarks(t tables.Jobs) []Need {
	return needsOf([]uses{
		{table: t.History, writes: "acknowledged_at"},
		{table: t.Workers, reads: "worker_id heartbeat_at heartbeat_timeout status kinds hostname pid build protocol created_at drain_requested_at", writes: "drain_requested_at"},
	})
}

// JobsOperator returns what needs who does what ops.Jobs does, but for [JobsMarks].
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
		{table: t.Attempts, reads: "job_id attempt worker_id started_at ended_at outcome code error", deletes: true},
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
			reads:  "id flow version state key unfinished bad awaited cancel_at created_at finished_at",
			writes: "cancel_at unfinished bad state finished_at",
		},
		{
			table:   t.FlowSteps,
			reads:   "*",
			inserts: "id name state dependents spec job_id",
			writes:  "state need may_fail blamed job_id finished_at code error result",
			deletes: true,
		},
		{
			table:   t.Operations,
			reads:   "id job_id queue operation detail operator reason created_at",
			inserts: "job_id queue operation detail operator reason created_at",
			serial:  "id",
		},
		{table: t.Changes, reads: "only count", inserts: "only count", writes: "count"},
	})
}
