package main

import (
	"context"
	"time"

	"github.com/pgfrontier/worker"
)

// scenario is a measurement.
type scenario struct {
	name, about string
	run         func(context.Context, *lab) ([]row, error)
}

var scenarios = []scenario{
	{"latency", "50 single appends a second: from the return of COMMIT to the call of the handler", latency},
	{"rollback", "an append that rolls back, then 20 commits: from the return of the last COMMIT until all 20 are handled", rollback},
	{"load", "20 writers at full speed, one append in five rolls back: the lag of each event behind its COMMIT", load},
	{"stale", "a transaction stays open among 21 other appends; four consumers on two workers, default options (without -long, a shorter StaleGapThreshold)", stale},
	{"idle-holder", "a transaction that has drawn a position stays idle while as many appends roll back as commit", idleHolder},
	{"unrelated", "a transaction that appends nothing stays open, in this database and in another", unrelated},
	{"scoped", "a consumer of 1% of an old log against one of all of it; handlers do nothing", scoped},
	{"catch-up", "a handler that does nothing reads a small and a large old log; the control reads the same rows with database/sql, each in its own process", catchUp},
	{"bulk", "a BatchConsumer counts events by aggregate with one upsert a batch; the control is a loop without the library that reads, applies, and moves a checkpoint in one transaction", bulk},
	{"upsert", "the same with one upsert an event, through Handle", upsert},
	{"partitions", "one consumer over an old log, in 1, 2, 4 and 8 partitions on one worker, whose handler sleeps for 1 ms, writes one upsert, or does nothing; the first also with a process for each partition", partitions},
	{"partitions-head", "one consumer at the head of the log, 1,000 appends a second, in 1 and in 8 partitions on one worker: statements that the worker sends for an event, and the lag behind the COMMIT", partitionsAtHead},
	{"partitions-quiet", "one consumer on a quiet log, 10 appends a second, in 8 and in 64 partitions on one worker: transactions that the server counts, without the appends, and how long a Waiter waits for single appends", partitionsOfQuietLog},
	{"rescale", "one consumer in 4, then 8, then 3 partitions, on two workers, 1,000 appends a second, with a handler that sleeps for 1 ms: the lag behind the COMMIT, and how long each change takes", rescale},
	{"many", "1, 8 and 50 consumers of one worker at the head of the log, 1,000 appends a second: cost of an event in the database, without the writers' sessions, with a shared read and with a read for each consumer", many},
	{"idle", "no events: statements a second of one worker, and transactions that the server counts", idle},
	{"rolling", "six consumers on two processes, 100 appends a second. A process joins: until it has handled an event of each of its consumers. The leader gets SIGTERM: until the other process has handled an event of each consumer", rolling},
	{"kill", "six consumers on two processes, default options; the leader gets SIGKILL: until the other process has handled an event of each consumer", kill},
	{"scale", "many workers that only coordinate (coord.Coordinators with code for all consumers), on a server of their own", scale},
	{"outage", "the server stops and returns under 20 writers at full speed and two workers with four consumers: until each consumer has handled a new event", outage},
	{"jobs-backlog", "package jobs: a worker with 100 slots and handlers that do nothing, before a small backlog and a large one, in turns; fsync is on", jobsOfBacklog},
	{"jobs-held", "the same while a transaction of another session holds a snapshot, so that vacuum removes nothing, and without", jobsHeld},
	{"jobs-foreign", "the same behind jobs of a kind that the worker has no code for, and without; and when a job starts that is enqueued then", jobsForeign},
	{"jobs-history", "the same while finished jobs are removed whose time is over, and without", jobsHistory},
	{"jobs-flow", "the same with steps of flows, eight side by side and one that joins them, and with plain jobs; and plain jobs with a worker that advances flows, and one that does not", jobsFlow},
}

// size says how long a run takes.
type size struct {
	appends   int           // latency
	rounds    int           // rollback
	load      time.Duration // load
	threshold time.Duration // StaleGapThreshold in stale and idle-holder
	open      time.Duration // stale: the transaction
	holder    time.Duration // idle-holder: the transaction
	pairs     int           // idle-holder: appends that commit, and as many that do not
	unrelated time.Duration // unrelated: the transaction
	history   int           // scoped: events in the old log
	passes    int           // over an old log; the best counts
	settle    time.Duration // idle: before the measurement
	idle      time.Duration // idle: the measurement

	logs       [2]int        // catch-up: events
	bulk       int           // bulk: events
	upserts    int           // upsert: events
	followers  []int         // many: consumers, one at first
	many       time.Duration // many, partitions-head, partitions-quiet, rescale: for each number of them
	handovers  int           // rolling, kill: runs
	groups     []int         // scale: workers
	units      int           // scale: consumers
	rest       time.Duration // scale: the count of statements
	rebalances int           // scale: of each kind
	outage     time.Duration // outage

	backlogs    [2]int // jobs-backlog: jobs that wait
	jobs        int    // jobs-backlog, jobs-foreign: jobs of a run
	manyJobs    int    // jobs-backlog, jobs-held: jobs of a long run
	jobRounds   int    // of runs
	foreign     int    // jobs-foreign: jobs without code
	foreignEach int    // jobs-foreign: jobs that are enqueued one by one
	finished    int    // jobs-history: jobs to remove
}

var usual = size{
	appends: 500, rounds: 200, load: 10 * time.Second,
	threshold: 3 * time.Second, open: 4 * time.Second,
	holder: 20 * time.Second, pairs: 3_500, unrelated: 10 * time.Second,
	history: 1_000_000, passes: 2,
	settle: 20 * time.Second, idle: 10 * time.Second,
	logs: [2]int{100_000, 1_000_000}, bulk: 150_000, upserts: 20_000, followers: []int{1, 8, 50}, many: 5 * time.Second,
	handovers: 5, groups: []int{10, 50, 200}, units: 2_000, rest: 5 * time.Second, rebalances: 2,
	outage:   10 * time.Second,
	backlogs: [2]int{100_000, 1_000_000}, jobs: 30_000, manyJobs: 200_000, jobRounds: 3, foreign: 200_000, foreignEach: 100, finished: 500_000,
}

var long = size{
	appends: 1_000, rounds: 400, load: 30 * time.Second,
	threshold: worker.DefaultConfig().StaleGapThreshold, open: 40 * time.Second,
	holder: time.Minute, pairs: 10_000, unrelated: time.Minute,
	history: 1_000_000, passes: 3,
	settle: time.Minute, idle: 30 * time.Second,
	logs: [2]int{100_000, 10_000_000}, bulk: 300_000, upserts: 40_000, followers: []int{1, 8, 50}, many: 5 * time.Second,
	handovers: 20, groups: []int{10, 50, 200}, units: 2_000, rest: 5 * time.Second, rebalances: 5,
	outage:   time.Minute,
	backlogs: [2]int{100_000, 10_000_000}, jobs: 30_000, manyJobs: 500_000, jobRounds: 3, foreign: 200_000, foreignEach: 200, finished: 2_000_000,
}

// dispatcher is a strategy with what it needs and what it costs.
type dispatcher struct {
	name    string
	channel string                      // that the writers notify
	options func(*site) []worker.Option // of the workers
	latency time.Duration               // at most, until the frontier polls
}

var (
	notify = dispatcher{"notify", channel, (*site).notify, 0}
	poll   = dispatcher{"poll", "", (*site).poll, worker.DefaultConfig().DispatcherInterval}
)

// warmUp lets everything that happens only once happen: connections, prepared
// statements, LISTEN.
func warmUp(ctx context.Context, j *journal, recorders ...*recorder) error {
	for range 5 {
		if err := j.append(ctx, true); err != nil {
			return err
		}
		if err := j.settle(ctx, recorders...); err != nil {
			return err
		}
	}
	return nil
}
