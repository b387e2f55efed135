package main

import (
	"time"

	"github.com/pgfrontier/worker"
)

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
	rebuild   time.Duration // rebuild: each part, in 20 turns a pass
	passes    int           // over an old log; the best counts. rebuild: 20 turns each; pgx: 6 turns each
	settle    time.Duration // idle: before the measurement
	idle      time.Duration // idle: the measurement

	logs       [2]int        // catch-up: events; rebuild: the second
	bulk       int           // bulk: events
	upserts    int           // upsert: events; pgx: five times as many
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
	history: 1_000_000, passes: 2, rebuild: 10 * time.Second,
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
	history: 1_000_000, passes: 3, rebuild: 20 * time.Second,
	settle: time.Minute, idle: 30 * time.Second,
	logs: [2]int{100_000, 10_000_000}, bulk: 300_000, upserts: 40_000, followers: []int{1, 8, 50}, many: 5 * time.Second,
	handovers: 20, groups: []int{10, 50, 200}, units: 2_000, rest: 5 * time.Second, rebalances: 5,
	outage:   time.Minute,
	backlogs: [2]int{100_000, 10_000_000}, jobs: 30_000, manyJobs: 500_000, jobRounds: 3, foreign: 200_000, foreignEach: 200, finished: 2_000_000,
}
