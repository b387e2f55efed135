package metrics

import (
	"slices"
	"strings"
)

// Kind is how the values of a metric are to be read.
type Kind int

const (
	Gauge     Kind = iota // what is now
	Counter               // what has happened so far; begins at 0, and again when a consumer comes back
	Histogram             // how often each range of values has occurred
)

// String is the kind's name.
func (k Kind) String() string { return [...]string{"gauge", "counter", "histogram"}[k] }

// Metric describes a metric.
type Metric struct {
	Name       string    // with dots, such as "pgfrontier.consumer.lag"
	Kind       Kind      // of its values
	Unit       string    // in UCUM: "s", or a word in braces
	Attributes []string  // names of what tells its series apart, in the order of a sample's values
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

	quickBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	slowBounds  = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
)

// Of a worker of events.
var (
	workerUp         = add("worker.up", Gauge, "{state}", nil, "1 while the worker runs or drains, 0 before and after, and nothing once an operator has drained it. All other gauges of a worker are there while it is 1.")
	workerInfo       = add("worker.info", Gauge, "{worker}", []string{"build"}, "Always 1. The build is the program's module, version and revision.")
	workerLeader     = add("worker.leader", Gauge, "{state}", nil, "1 if this worker assigns the consumers.")
	workerHeartbeat  = add("worker.heartbeat.age", Gauge, "s", nil, "Time since the worker last told the others that it is alive.")
	workerWakeups    = add("worker.wakeups", Counter, "{wakeup}", []string{"source"}, "Polls before their time, by what caused them: events or changes.")
	workerAssigned   = add("consumers.assigned", Gauge, "{consumer}", nil, "Consumers, and parts of consumers, that this worker runs.")
	workerUnowned    = add("consumers.unowned", Gauge, "{consumer}", nil, "Consumers that nobody runs. Only the leader knows.")
	openRangesLimit  = add("open_ranges.limit", Gauge, "{range}", nil, "The option WithMaxOpenRanges.")
	logHead          = add("log.head", Gauge, "{position}", nil, "The highest position of a visible event.")
	frontierSafe     = add("frontier.safe", Gauge, "{position}", nil, "Consumers may read up to it.")
	frontierSettled  = add("frontier.settled", Gauge, "{position}", nil, "Every position up to it is visible or void.")
	frontierUp       = add("frontier.up", Gauge, "{state}", nil, "1 if the worker can read the log, and none of its loops hangs.")
	frontierStill    = add("frontier.still", Gauge, "s", nil, "Time for which frontier.safe has not moved while log.head was above it.")
	frontierBlocked  = add("frontier.blocked.age", Gauge, "s", nil, "Age of the oldest transaction that holds the consumers back. 0: there is none.")
	frontierBlockers = add("frontier.blockers", Gauge, "{transaction}", []string{"state"}, "Open transactions: holding are those that all events behind their positions wait for, passed those whose events come late.")

	consumerPosition = add("consumer.position", Gauge, "{position}", byUnit, "The checkpoint.")
	consumerLag      = add("consumer.lag", Gauge, "{position}", byUnit, "Positions between the checkpoint and frontier.safe.")
	consumerBehind   = add("consumer.behind", Gauge, "{position}", byUnit, "Positions between the checkpoint and log.head.")
	consumerOldest   = add("consumer.oldest.age", Gauge, "s", byUnit, "Time for which the first event above the checkpoint has been waiting, by the database's clock. 0: there is none.")
	consumerPaused   = add("consumer.paused", Gauge, "{state}", byUnit, "1 if the consumer does not run until an operator resumes it.")
	consumerEvents   = add("consumer.events", Counter, "{event}", []string{"consumer", "late"}, "Events that were handled and committed; late is true or false.")
	consumerBatches  = add("consumer.batches", Counter, "{batch}", []string{"consumer", "outcome"}, "Batches: committed, failed, or overtaken by another worker's.")
	consumerRetries  = add("consumer.retries", Counter, "{retry}", []string{"consumer", "cause"}, "Batches that are tried again, because of the handler, a conflict (deadlock, serialization), the database, or the key of partitions.")
	consumerSkipped  = add("consumer.positions.skipped", Counter, "{position}", []string{"consumer", "state"}, "Positions without an event: void, open when they were passed, or late.")
	lettersAdded     = add("letters.added", Counter, "{letter}", byConsumer, "Events that went to the dead letters.")
	lettersOpen      = add("letters.open", Gauge, "{aggregate}", byUnit, "Aggregates, or keys, that have dead letters; up to 100.")
	openRanges       = add("open_ranges", Gauge, "{range}", byUnit, "Ranges of positions that the consumer has passed while they were in doubt.")
	batchDuration    = addHistogram("batch.duration", []string{"consumer", "part"}, quickBounds, "Parts of a batch: read, guard, handle, commit.")
	deliveryDuration = addHistogram("delivery.duration", byConsumer, slowBounds, "From an event's CreatedAt to the commit of the batch that handled it, by the clocks of the database and of this process. Without replays.")
)

// Of a worker of jobs.
var (
	jobsUp         = add("jobs.worker.up", Gauge, "{state}", nil, "1 while the worker runs or drains, 0 before and after, and nothing once an operator has drained it. All other gauges of a worker are there while it is 1.")
	jobsLeader     = add("jobs.worker.leader", Gauge, "{state}", nil, "1 if this worker leads.")
	jobsHeartbeat  = add("jobs.worker.heartbeat.age", Gauge, "s", nil, "Time since the worker last told the others that it is alive.")
	jobsUnsettled  = add("jobs.unsettled", Gauge, "{job}", nil, "Runs that have ended, before the database knows.")
	jobsConcurrent = add("jobs.queue.concurrency", Gauge, "{job}", byQueue, "Jobs that the worker may run at once.")
	jobsRunning    = add("jobs.queue.running", Gauge, "{job}", byQueue, "Handlers that run, and those that were given up and have not returned.")
	jobsLostSlots  = add("jobs.queue.slots.lost", Gauge, "{job}", byQueue, "Slots that handlers keep which were given up, as they ignore the end of their contexts.")
	jobsPrefetched = add("jobs.queue.prefetched", Gauge, "{job}", byQueue, "Jobs that are claimed ahead.")
	jobsQueueUp    = add("jobs.queue.up", Gauge, "{state}", byQueue, "1 if jobs can be claimed.")
	jobsPaused     = add("jobs.queue.paused", Gauge, "{state}", byQueue, "1 if an operator has paused the queue.")
	jobsUnknown    = add("jobs.queue.unknown_kinds", Gauge, "{kind}", byQueue, "Kinds of jobs that are due and that this worker has no handlers for.")
	jobsReadUp     = add("jobs.read.up", Gauge, "{state}", nil, "1 if the queues' depth and age, and the schedules, could be read at the latest look. Only on the leader, as are they.")
	jobsDue        = add("jobs.queue.due", Gauge, "{job}", byQueue, "Jobs that are due and do not run; 10,001 stands for more.")
	jobsScheduled  = add("jobs.queue.scheduled", Gauge, "{job}", byQueue, "Jobs that are due later; 10,001 stands for more.")
	jobsOldest     = add("jobs.queue.oldest.age", Gauge, "s", byQueue, "Time for which the first of the due jobs has been due. 0: there is none.")
	jobsOverdue    = add("jobs.schedule.overdue", Gauge, "s", bySchedule, "Time since the next tick of the schedule was due: no process has the schedule, or its job cannot be enqueued. 0: it is not due. Only on the leader.")
	jobsStopped    = add("jobs.schedule.paused", Gauge, "{state}", bySchedule, "1 if an operator has paused the schedule. Only on the leader.")
	jobsUnadvanced = add("jobs.flows.unadvanced", Gauge, "{state}", nil, "1 if runs of flows have not ended and no worker has advanced flows for a minute. Only on the leader.")
	jobsTicks      = add("jobs.schedule.ticks", Counter, "{tick}", []string{"schedule", "outcome"}, "Ticks that this process has come to: enqueued, passed (without a new job: the schedule is paused, or CatchUp or Unique left it out), failed (tried again). A tick that was missed counts as its job.")
	jobsLateTick   = addHistogram("jobs.schedule.late.duration", bySchedule, slowBounds, "From a tick, of several that were missed the first, until this process saw it, by the database's clock. Without those that passed or failed.")
	jobsRuns       = add("jobs.flow.runs", Counter, "{run}", []string{"flow", "outcome"}, "Runs of flows that ended: completed, failed, cancelled. The worker counts that has told the end of the last step.")
	jobsRunTook    = addHistogram("jobs.flow.duration", []string{"flow"}, slowBounds, "From the first start of a run to its end, by the database's clock.")
	jobsClaimed    = add("jobs.claimed", Counter, "{job}", byQueue, "Jobs that were claimed.")
	jobsClaim      = addHistogram("jobs.claim.duration", byQueue, quickBounds, "Time that a claim took which found jobs.")
	jobsUnclaimed  = add("jobs.claim.failures", Counter, "{claim}", byQueue, "Claims, and looks at the queue, that failed and are tried again.")
	jobsDone       = add("jobs.done", Counter, "{job}", []string{"queue", "kind", "outcome"}, "Runs that ended: completed, failed (for good), retried (failed, and runs again), snoozed (runs again without a failure), cancelled.")
	jobsLost       = add("jobs.lost", Counter, "{job}", byKind, "Runs whose job was given to another worker, or deleted.")
	jobsDuration   = addHistogram("jobs.duration", byKind, quickBounds, "Time that the handler took.")
	jobsWait       = addHistogram("jobs.wait.duration", byKind, slowBounds, "From when a job was due to its start, by the clocks of the database and of this process.")
)

// Of a worker of package jobs/table.
var (
	tableClaimed  = add("jobs.table.claimed", Counter, "{job}", byTable, "Rows that were claimed.")
	tableClaim    = addHistogram("jobs.table.claim.duration", byTable, quickBounds, "Time that a claim took which found rows.")
	tableDone     = add("jobs.table.done", Counter, "{job}", []string{"table", "outcome"}, "Runs that ended, by the state that the row has now: completed, errored (runs again), failed (for good), canceled, queued (given back).")
	tableLost     = add("jobs.table.lost", Counter, "{job}", byTable, "Runs whose row was given to another worker, or changed by somebody.")
	tableDuration = addHistogram("jobs.table.duration", byTable, quickBounds, "Time that PreHandle and the handler took.")
	tableFailures = add("jobs.table.failures", Counter, "{failure}", []string{"table", "what"}, "Statements that failed and are tried again, and rows that the table refuses to change: database, claim, heartbeat, settle, reset.")
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

// All returns every metric that a [Recorder] has. They are the same in every call: compare the
// pointers.
func All() []*Metric { return slices.Clone(all) }
