package metrics

import (
	"slices"
	"strings"
)

// Kind is how the values of a metric are to be read.
type Kind int

const (
	Gauge     Kind = iota // the present value
	Counter               // the sum so far; it begins again at 0 when a consumer returns
	Histogram             // how often the ranges of values have occurred
)

// String is the kind's name.
func (k Kind) String() string { return [...]string{"gauge", "counter", "histogram"}[k] }

// Metric describes a metric.
type Metric struct {
	Name       string    // with dots, such as "pgfrontier.consumer.lag"
	Kind       Kind      // of its values
	Unit       string    // in UCUM: "s", or a word in braces
	Attributes []string  // the names of the attributes of a series, in the order of a sample's values
	Bounds     []float64 // of a Histogram's ranges
	Help       string    // a sentence
}

// Prometheus is the name for Prometheus, such as "pgfrontier_batch_duration_seconds". The
// exporter of OpenTelemetry makes the same of Name.
func (m *Metric) Prometheus() string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	if m.Unit == "s" {
		name += "_seconds"
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

var (
	byConsumer = []string{"consumer"}
	byUnit     = []string{"consumer", "partition"}
	byQueue    = []string{"queue"}
	byKind     = []string{"queue", "kind"}
	bySchedule = []string{"schedule"}
	byTable    = []string{"table"}
	byWhat     = []string{"table", "what"}

	quickBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	slowBounds  = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
)

// Of a worker of events.
var (
	workerUp         = add("worker.up", Gauge, "{state}", nil, "1 while the worker runs or drains, else 0. Absent after an operator's drain. The worker's other gauges exist while it is 1.")
	workerInfo       = add("worker.info", Gauge, "{worker}", []string{"build"}, "The value is 1. build has the program's module, version and revision.")
	workerLeader     = add("worker.leader", Gauge, "{state}", nil, "1 if this worker assigns the consumers.")
	workerHeartbeat  = add("worker.heartbeat.age", Gauge, "s", nil, "Age of the worker's last heartbeat.")
	workerWakeups    = add("worker.wakeups", Counter, "{wakeup}", []string{"source"}, "Early polls, by cause: events or changes.")
	workerAssigned   = add("consumers.assigned", Gauge, "{consumer}", nil, "Consumers and partitions that this worker runs.")
	workerUnowned    = add("consumers.unowned", Gauge, "{consumer}", nil, "Consumers without a worker. Only on the leader.")
	openRangesLimit  = add("open_ranges.limit", Gauge, "{range}", nil, "The option WithMaxOpenRanges.")
	logHead          = add("log.head", Gauge, "{position}", nil, "The highest position of a visible event.")
	frontierSafe     = add("frontier.safe", Gauge, "{position}", nil, "Position up to which consumers may read.")
	frontierSettled  = add("frontier.settled", Gauge, "{position}", nil, "Position up to which every position is visible or void.")
	frontierUp       = add("frontier.up", Gauge, "{state}", nil, "1 if the worker can read the log and no loop hangs.")
	frontierReadAge  = add("frontier.read.age", Gauge, "s", nil, "Time since the last read of the log, whose values are kept.")
	frontierStill    = add("frontier.still", Gauge, "s", nil, "Time since frontier.safe moved, while log.head is above it.")
	frontierBlocked  = add("frontier.blocked.age", Gauge, "s", nil, "Age of the oldest transaction that holds consumers back. 0: none.")
	frontierBlockers = add("frontier.blockers", Gauge, "{transaction}", []string{"state"}, "Open transactions: holding (later events wait) or passed (their events come late).")

	consumerPosition = add("consumer.position", Gauge, "{position}", byUnit, "The checkpoint.")
	consumerLag      = add("consumer.lag", Gauge, "{position}", byUnit, "Positions between the checkpoint and frontier.safe.")
	consumerBehind   = add("consumer.behind", Gauge, "{position}", byUnit, "Positions between the checkpoint and log.head.")
	consumerOldest   = add("consumer.oldest.age", Gauge, "s", byUnit, "Age of the first event above the checkpoint, by the database's clock. 0: none.")
	consumerPaused   = add("consumer.paused", Gauge, "{state}", byUnit, "1 if the consumer is paused.")
	consumerEvents   = add("consumer.events", Counter, "{event}", []string{"consumer", "late"}, "Events handled and committed; late is true or false.")
	consumerBatches  = add("consumer.batches", Counter, "{batch}", []string{"consumer", "outcome"}, "Batches: committed, failed, or overtaken by another worker.")
	consumerRetries  = add("consumer.retries", Counter, "{retry}", []string{"consumer", "cause"}, "Retried batches, by cause: handler, conflict (deadlock, serialization), database, partition key.")
	consumerSkipped  = add("consumer.positions.skipped", Counter, "{position}", []string{"consumer", "state"}, "Passed positions without an event: void, open, or late.")
	deadLettersAdded = add("letters.added", Counter, "{letter}", byConsumer, "Events that became dead letters.")
	deadLettersOpen  = add("letters.open", Gauge, "{aggregate}", byUnit, "Aggregates or keys with dead letters, up to 100.")
	consumerVerified = add("consumer.verified", Counter, "{aggregate}", []string{"consumer", "outcome"}, "Aggregates that VerifyEvery of package ops has verified in this process: right, differs, or failed (its handler).")
	openRanges       = add("open_ranges", Gauge, "{range}", byUnit, "Ranges of positions passed in doubt.")
	batchDuration    = addHistogram("batch.duration", []string{"consumer", "part"}, quickBounds, "Parts of a batch: read, guard, handle, commit.")
	deliveryDuration = addHistogram("delivery.duration", byConsumer, slowBounds, "From an event's CreatedAt to the commit of its batch, by the clocks of database and process. Without replays.")
)

// Of a worker of jobs.
var (
	jobsUp         = add("jobs.worker.up", Gauge, "{state}", nil, "1 while the worker runs or drains, else 0. Absent after an operator's drain. The worker's other gauges exist while it is 1.")
	jobsLeader     = add("jobs.worker.leader", Gauge, "{state}", nil, "1 if this worker leads.")
	jobsHeartbeat  = add("jobs.worker.heartbeat.age", Gauge, "s", nil, "Age of the worker's last heartbeat.")
	jobsUnsettled  = add("jobs.unsettled", Gauge, "{job}", nil, "Runs that have ended but are not stored yet.")
	jobsConcurrent = add("jobs.queue.concurrency", Gauge, "{job}", byQueue, "Slots of the worker.")
	jobsRunning    = add("jobs.queue.running", Gauge, "{job}", byQueue, "Handlers that run, abandoned ones included.")
	jobsLostSlots  = add("jobs.queue.slots.lost", Gauge, "{job}", byQueue, "Slots of abandoned handlers, which ignore the end of their context.")
	jobsPrefetched = add("jobs.queue.prefetched", Gauge, "{job}", byQueue, "Jobs claimed in advance.")
	jobsQueueUp    = add("jobs.queue.up", Gauge, "{state}", byQueue, "1 if jobs can be claimed.")
	jobsPaused     = add("jobs.queue.paused", Gauge, "{state}", byQueue, "1 if an operator has paused the queue.")
	jobsUnknown    = add("jobs.queue.unknown_kinds", Gauge, "{kind}", byQueue, "Kinds of due jobs without a handler in this worker.")
	jobsReadUp     = add("jobs.read.up", Gauge, "{state}", nil, "1 if the last read of queues and schedules succeeded. Only on the leader.")
	jobsReadAge    = add("jobs.read.age", Gauge, "s", nil, "Time since the last read that succeeded, whose values are kept. Only on the leader.")
	jobsDue        = add("jobs.queue.due", Gauge, "{job}", byQueue, "Due jobs that do not run; 10,001 means more. Only on the leader.")
	jobsScheduled  = add("jobs.queue.scheduled", Gauge, "{job}", byQueue, "Jobs due later; 10,001 means more. Only on the leader.")
	jobsOldest     = add("jobs.queue.oldest.age", Gauge, "s", byQueue, "Time since the oldest due job became due. 0: none. Only on the leader.")
	jobsOverdue    = add("jobs.schedule.overdue", Gauge, "s", bySchedule, "Time since the next tick was due. 0: not due. Only on the leader.")
	jobsStopped    = add("jobs.schedule.paused", Gauge, "{state}", bySchedule, "1 if an operator has paused the schedule. Only on the leader.")
	jobsUnadvanced = add("jobs.flows.unadvanced", Gauge, "{state}", nil, "1 if flow runs are unfinished and no worker advanced flows for a minute. Only on the leader.")
	jobsTicks      = add("jobs.schedule.ticks", Counter, "{tick}", []string{"schedule", "outcome"}, "Ticks of this process: enqueued, passed (no job: a pause, CatchUp or Unique), failed (retried). A missed tick counts as its job.")
	jobsLateTick   = addHistogram("jobs.schedule.late.duration", bySchedule, slowBounds, "From a tick, or the first of several missed ticks, until this process saw it, by the database's clock. Without passed and failed ticks.")
	jobsRuns       = add("jobs.flow.runs", Counter, "{run}", []string{"flow", "outcome"}, "Ended flow runs: completed, failed, cancelled. Counted by the worker that ended the run.")
	jobsRunTook    = addHistogram("jobs.flow.duration", []string{"flow"}, slowBounds, "From a run's first start to its end, by the database's clock.")
	jobsClaimed    = add("jobs.claimed", Counter, "{job}", byQueue, "Claimed jobs.")
	jobsClaim      = addHistogram("jobs.claim.duration", byQueue, quickBounds, "Duration of claims that found jobs.")
	jobsUnclaimed  = add("jobs.claim.failures", Counter, "{claim}", byQueue, "Failed claims and polls, which are retried.")
	jobsDone       = add("jobs.done", Counter, "{job}", []string{"queue", "kind", "outcome"}, "Ended runs: completed, failed (for good), retried, snoozed (runs again without a failure), cancelled.")
	jobsLost       = add("jobs.lost", Counter, "{job}", byKind, "Runs that lost their job to another worker or a deletion.")
	jobsDuration   = addHistogram("jobs.duration", byKind, quickBounds, "Duration of the handler.")
	jobsWait       = addHistogram("jobs.wait.duration", byKind, slowBounds, "From when a job was due to its start, by the clocks of database and process.")
)

// Of a worker of package jobs/table.
var (
	tableUp       = add("jobs.table.up", Gauge, "{state}", byWhat, "1 if it works: worker (runs or drains), loops (none hangs), claim, heartbeat, settle, reset. While worker is 0, there are no other gauges.")
	tableSuccess  = add("jobs.table.success.age", Gauge, "s", byWhat, "Time since statements last succeeded: claim (none while all slots are taken), heartbeat, settle (none while no run ends), reset.")
	tableRefused  = add("jobs.table.refused", Gauge, "{job}", byWhat, "Rows that the table refuses to change while it changes others: claim, heartbeat, settle, reset.")
	tableSlots    = add("jobs.table.slots", Gauge, "{job}", []string{"table", "state"}, "Slots of the worker: free, running, unsettled (the outcome is not stored yet), lost (of abandoned handlers).")
	tableClaimed  = add("jobs.table.claimed", Counter, "{job}", byTable, "Claimed rows.")
	tableClaim    = addHistogram("jobs.table.claim.duration", byTable, quickBounds, "Duration of claims that found rows.")
	tableDone     = add("jobs.table.done", Counter, "{job}", []string{"table", "outcome"}, "Ended runs, by the row's new state: completed, errored (runs again), failed (for good), canceled, queued (given back).")
	tableLost     = add("jobs.table.lost", Counter, "{job}", byTable, "Runs that lost their row to another worker or a change.")
	tableDuration = addHistogram("jobs.table.duration", byTable, quickBounds, "Duration of PreHandle and handler.")
	tableFailures = add("jobs.table.failures", Counter, "{failure}", byWhat, "Failed statements, which are retried, and rows that the table refuses to change: database, claim, heartbeat, settle, reset.")
)

var all []*Metric

func add(name string, kind Kind, unit string, attributes []string, help string) *Metric {
	m := &Metric{Name: "pgfrontier." + name, Kind: kind, Unit: unit, Attributes: attributes, Help: help}
	all = append(all, m)
	return m
}

func addHistogram(name string, attributes []string, bounds []float64, help string) *Metric {
	m := add(name, Histogram, "s", attributes, help)
	m.Bounds = bounds
	return m
}

// All returns the metrics that a [Recorder] has. They are the same in all calls: compare the
// pointers.
func All() []*Metric { return slices.Clone(all) }
