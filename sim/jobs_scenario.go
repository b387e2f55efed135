package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/oracle"
)

// JobKnobs are the settings of a run of jobs that differ from seed to seed.
type JobKnobs struct {
	Queues            []JobQueue
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

// JobQueue is a queue, and how many of its jobs a worker runs at once.
type JobQueue struct {
	Name        string
	Concurrency int
}

// jobAttempts is after how many failures a job has failed.
const jobAttempts = 6

// drawJobs makes the scenario of a seed for a run of jobs.
func drawJobs(c Config) Scenario {
	r := fault.Dice(c.Seed, "scenario of jobs")
	k := drawJobKnobs(r)
	k.Calm = min(max(c.Duration/8, 300*time.Millisecond), 2250*time.Millisecond)
	s := Scenario{Seed: c.Seed, Jobs: &k, Faults: c.Faults}
	if s.Faults == nil {
		s.Faults = drawJobFaults(c.Seed)
	}
	if s.Faults["kill-listener"] > 0 {
		k.Listeners = max(k.Listeners, 0.5)
	}
	if s.Faults["kill-lock"] > 0 {
		k.Leader = jobs.LeaderStrategyAdvisory
	}
	return s
}

func drawJobKnobs(r *rand.Rand) JobKnobs {
	return JobKnobs{
		Queues:            []JobQueue{{"default", oneOf(r, 5, 10, 20)}, {"mail", oneOf(r, 2, 5)}, {"narrow", oneOf(r, 1, 2)}},
		Concurrency:       oneOf(r, 0, 0, 8),
		Prefetch:          oneOf(r, 0, 3, 20),
		PollInterval:      between(r, 50*time.Millisecond, 400*time.Millisecond),
		Listeners:         oneOf(r, 0, 0.5, 1),
		Leader:            oneOf(r, jobs.LeaderStrategyAdvisory, jobs.LeaderStrategyAdvisory, jobs.LeaderStrategyLease),
		HeartbeatInterval: between(r, 100*time.Millisecond, 250*time.Millisecond),
		HeartbeatTimeout:  between(r, 1500*time.Millisecond, 2500*time.Millisecond),
		RescueDelay:       between(r, 700*time.Millisecond, 1200*time.Millisecond),
		ShutdownTimeout:   between(r, 100*time.Millisecond, 2*time.Second),
		HandlerTimeout:    between(r, time.Second, 2*time.Second),
		Pool:              oneOf(r, 8, 12),
		BatchSize:         oneOf(r, 3, 10),
		Caps:              []int{0, 1, 2, 3, 5},
		Pause:             250 * time.Millisecond,
		LongestTx:         2 * time.Second,
		Outage:            time.Second,
	}
}

// jobsStatementLimit is what bounds each statement of a worker of jobs, and its wait
// for a connection.
const jobsStatementLimit = 10 * time.Second

// deadAfter is after how long at least the jobs of a worker that hangs are given to others.
func (s Scenario) deadAfter() time.Duration {
	timeout := s.Jobs.HeartbeatTimeout
	if s.Faults[timeoutsOn] > 0 {
		timeout = time.Duration(shortest * float64(timeout))
	}
	return timeout + s.Jobs.RescueDelay
}

// rescueBound is how long the jobs of a worker that has crashed may wait for another:
// until it counts as dead, and so does a leader that has crashed with it, then the
// rescue's delay, and one statement, for which a connection may have to be made while
// all others make theirs. All of that is settings of the library: a slow machine has no
// more time.
func (s Scenario) rescueBound() time.Duration {
	timeout := s.Jobs.HeartbeatTimeout
	if s.Faults[timeoutsOn] > 0 {
		timeout = time.Duration(longest * float64(timeout))
	}
	return 2*timeout + s.Jobs.RescueDelay + jobsStatementLimit
}

// options are those of a worker.
func (k JobKnobs) options(listen string) []jobs.Option {
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

// lines are the drawn knobs as a person reads them.
func (k JobKnobs) lines(faults Intensities) []oracle.Line {
	var queues []string
	for _, q := range k.Queues {
		queues = append(queues, fmt.Sprintf("%s (%d at once)", q.Name, q.Concurrency))
	}
	var schedules []string
	for _, s := range jobSchedules {
		schedules = append(schedules, s.String())
	}
	total := "no bound"
	if k.Concurrency > 0 {
		total = fmt.Sprintf("%d at once", k.Concurrency)
	}
	return []oracle.Line{
		{Name: "faults", Value: faults.String()},
		{Name: "queues", Value: strings.Join(queues, ", ")},
		{Name: "a worker", Value: fmt.Sprintf("%s of all queues, %d connections", total, k.Pool)},
		{Name: "prefetch", Value: fmt.Sprint(k.Prefetch)},
		{Name: "poll", Value: fmt.Sprintf("every %v; %.0f%% of the workers listen", k.PollInterval, 100*k.Listeners)},
		{Name: "leader", Value: string(k.Leader)},
		{Name: "heartbeat", Value: fmt.Sprintf("every %v, dead after %v", k.HeartbeatInterval, k.HeartbeatTimeout)},
		{Name: "rescue", Value: fmt.Sprintf("after %v", k.RescueDelay)},
		{Name: "stop", Value: fmt.Sprintf("waits for %v", k.ShutdownTimeout)},
		{Name: "handlers", Value: fmt.Sprintf("take at most %v, %d jobs a batch", k.HandlerTimeout, k.BatchSize)},
		{Name: "schedules", Value: strings.Join(schedules, ", ")},
		{Name: "flows", Value: strings.Join(flowNames(), ", ")},
		{Name: "transactions", Value: fmt.Sprintf("of enqueuers, open for up to %v", k.LongestTx)},
	}
}
