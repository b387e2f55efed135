package jobs

import (
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/stage"
)

// Knobs are the settings of a run of jobs that differ from seed to seed.
type Knobs struct {
	Queues            []Queue
	Concurrency       int // of a worker, 0: no bound
	Prefetch          int
	PollInterval      time.Duration
	Listeners         float64 // how many of the workers listen
	Leader            jobs.LeaderStrategy
	HeartbeatInterval time.Duration
	HeartbeatTimeout  time.Duration
	RescueDelay       time.Duration
	ShutdownTimeout   time.Duration
	HandlerTimeout    time.Duration
	Pool              int // connections of a worker
	BatchSize         int
	Caps              []int // that operators set, 0: none

	Pause     time.Duration // of an enqueuer between two transactions, on average
	LongestTx time.Duration // a delayed commit waits 50ms to this
	Outage    time.Duration // a crashed worker is replaced after at most this
	Calm      time.Duration // between two faults of a worker, on average
}

// Queue is a queue, and how many of its jobs a worker runs at once.
type Queue struct {
	Name        string
	Concurrency int
}

// maxAttempts is after how many failures a job has failed.
const maxAttempts = 6

// Scenario is all that the seed decides before a run of jobs begins.
type Scenario struct {
	Seed   uint64
	Knobs  Knobs
	Faults map[string]float64

	settings map[string]string // of the sessions of one worker, beside the usual ones
}

func drawKnobs(r *rand.Rand) Knobs {
	return Knobs{
		Queues:            []Queue{{"default", fault.OneOf(r, 5, 10, 20)}, {"mail", fault.OneOf(r, 2, 5)}, {"narrow", fault.OneOf(r, 1, 2)}},
		Concurrency:       fault.OneOf(r, 0, 0, 8),
		Prefetch:          fault.OneOf(r, 0, 3, 20),
		PollInterval:      fault.Between(r, 50*time.Millisecond, 400*time.Millisecond),
		Listeners:         fault.OneOf(r, 0, 0.5, 1),
		Leader:            fault.OneOf(r, jobs.LeaderStrategyAdvisory, jobs.LeaderStrategyAdvisory, jobs.LeaderStrategyLease),
		HeartbeatInterval: fault.Between(r, 100*time.Millisecond, 250*time.Millisecond),
		HeartbeatTimeout:  fault.Between(r, 1500*time.Millisecond, 2500*time.Millisecond),
		RescueDelay:       fault.Between(r, 700*time.Millisecond, 1200*time.Millisecond),
		ShutdownTimeout:   fault.Between(r, 100*time.Millisecond, 2*time.Second),
		HandlerTimeout:    fault.Between(r, time.Second, 2*time.Second),
		Pool:              fault.OneOf(r, 8, 12),
		BatchSize:         fault.OneOf(r, 3, 10),
		Caps:              []int{0, 1, 2, 3, 5},
		Pause:             250 * time.Millisecond,
		LongestTx:         2 * time.Second,
		Outage:            time.Second,
	}
}

// leaving is how long a worker takes to store what became of its jobs, and to leave.
const leaving = 30 * time.Second

// EndBound is how long a worker that is told to end may take: to finish what it runs, and to leave.
func (k Knobs) EndBound(b harness.Bounds) time.Duration {
	return k.ShutdownTimeout + b.Of(leaving)
}

// equipment is what the machine of a worker has.
func (s Scenario) equipment() stage.Equipment {
	return stage.Equipment{Seed: s.Seed, Pool: s.Knobs.Pool, Settings: s.settings, Async: s.Faults[stage.AsyncWorkersOn] > 0, Plain: s.Faults[stage.LeftRow.Name] > 0}
}

// statementLimit is what bounds each statement of a worker of jobs, and its wait
// for a connection.
const statementLimit = 10 * time.Second

// deadAfter is after how long at least the jobs of a worker that hangs are given to others.
func (s Scenario) deadAfter() time.Duration {
	timeout := s.Knobs.HeartbeatTimeout
	if s.Faults[stage.TimeoutsOn] > 0 {
		timeout = time.Duration(stage.Shortest * float64(timeout))
	}
	return timeout + s.Knobs.RescueDelay
}

// rescueBound is how long the jobs of a crashed worker may wait for another. It is a sum: the time
// until the worker counts as dead, and a leader that crashed with it; the rescue's delay; and one
// statement, whose connection may have to be made while all others make theirs. These are settings
// of the library: a slow machine has no more time.
func (s Scenario) rescueBound() time.Duration {
	timeout := s.Knobs.HeartbeatTimeout
	if s.Faults[stage.TimeoutsOn] > 0 {
		timeout = time.Duration(stage.Longest * float64(timeout))
	}
	return 2*timeout + s.Knobs.RescueDelay + statementLimit
}

// options are the options of a worker.
func (k Knobs) options(listen string) []jobs.Option {
	all := []jobs.Option{
		jobs.WithConcurrency(k.Concurrency),
		jobs.WithPrefetch(k.Prefetch),
		jobs.WithPollInterval(k.PollInterval),
		jobs.WithLeaderStrategy(k.Leader),
		jobs.WithHeartbeatInterval(k.HeartbeatInterval),
		jobs.WithHeartbeatTimeout(k.HeartbeatTimeout),
		jobs.WithRescueDelay(k.RescueDelay),
		jobs.WithShutdownTimeout(k.ShutdownTimeout),
	}
	for _, q := range k.Queues {
		all = append(all, jobs.WithQueue(q.Name, q.Concurrency))
	}
	if listen != "" {
		all = append(all, jobs.WithNotifyConnectionString(listen))
	}
	return all
}
