package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Config is what a person decides about a run; the seed decides the rest.
type Config struct {
	URL       string        // connection string of a server where databases may be created
	Workers   int           // 1 to 50
	Writers   int           // 1 to 200
	Consumers int           // 1 to 50; a third of them want some aggregate types only
	Duration  time.Duration // of the part with faults, 1s to 24h; up to twice that on a slow machine; copies of the server, setting up and coming to rest are added
	Seed      uint64        // 0 is a seed like any other
	Faults    Intensities   // nil: the seed draws them
	Server    Server        // the one of URL, if a run may crash it; nil: faults that need that are off
	Repeat    string        // the command that runs this again; empty: the one of cmd/sim
	Jobs      bool          // workers of jobs, in place of those of consumers, and enqueuers in place of writers

	// Bounds are how long the harness waits for what must come. The zero value is measured
	// before the run begins.
	Bounds harness.Bounds
	// Patience is how many times as long it waits; 0 is 1. A run that was not judged is
	// repeated with 2.
	Patience float64

	// Progress, if set, is called a few times a second, from one goroutine.
	Progress func(Progress)

	made *[]string // the names of its databases, for tests; nil: nobody asks
}

// DefaultConfig is a run of half a minute.
func DefaultConfig() Config {
	return Config{Workers: 5, Writers: 20, Consumers: 6, Duration: 22 * time.Second}
}

// Validate reports the first value out of range.
func (c Config) Validate() error {
	for _, n := range []struct {
		flag             string
		value, low, high int
	}{
		{"-workers", c.Workers, 1, 50},
		{"-writers", c.Writers, 1, 200},
		{"-consumers", c.Consumers, 1, 50},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("%s %d is out of range, allowed is %d to %d", n.flag, n.value, n.low, n.high)
		}
	}
	if c.Duration < time.Second || c.Duration > 24*time.Hour {
		return fmt.Errorf("-duration %v is out of range, allowed is 1s to 24h", c.Duration)
	}
	return nil
}

// Scenario is all that the seed decides before a run begins.
type Scenario struct {
	Seed   uint64
	Knobs  Knobs
	Faults Intensities
	Scope  []history.Scope // the consumers
	Jobs   *JobKnobs       // the settings of a run of jobs; nil: it is one of events

	settings map[string]string // of the sessions of one worker, beside the usual ones
}

// Knobs are the settings that differ from seed to seed.
type Knobs struct {
	BatchSize         int
	BatchTimeout      time.Duration
	Dispatcher        worker.DispatcherStrategy
	DispatcherEvery   time.Duration
	Leader            worker.LeaderStrategy
	HeartbeatInterval time.Duration
	HeartbeatTimeout  time.Duration
	RebalanceInterval time.Duration
	GapPolicy         worker.GapPolicy
	StaleGapThreshold time.Duration
	HarborLag         int
	MaxOpenRanges     int

	Aggregates int           // of each type, beside the new ones
	Pause      time.Duration // of a writer between two transactions, on average
	LongestTx  time.Duration // a delayed commit waits 50ms to this
	Outage     time.Duration // a crashed worker is replaced after at most this
	Calm       time.Duration // between two faults of a worker, on average: less in a short run
	MoveEvery  time.Duration // a consumer is moved away from its worker about this often
}

// aggregateTypes have 4, 3, 2 and 1 tenths of the events.
var aggregateTypes = []string{"order", "account", "cart", "device"}

// scopes are what scoped consumers want: at least half of all events.
var scopes = [][]string{{"order", "account"}, {"order", "cart"}, {"order", "device"}, {"account", "cart"}}

// Draw makes the scenario of a seed.
func Draw(c Config) Scenario {
	if c.Jobs {
		return drawJobs(c)
	}
	r := fault.Dice(c.Seed, "scenario")
	s := Scenario{Seed: c.Seed, Knobs: drawKnobs(r), Faults: c.Faults}
	s.Knobs.Calm = min(max(c.Duration/8, 300*time.Millisecond), 2250*time.Millisecond)
	if s.Faults == nil {
		s.Faults = drawFaults(c.Seed)
	}
	if s.Faults.any(func(f faultRow) bool { return f.listens }) {
		s.Knobs.Dispatcher = worker.DispatcherStrategyNotify
	}
	scoped := c.Consumers / 3
	for i := range c.Consumers {
		scope := history.Scope{Name: fmt.Sprintf("all-%d", i+1)}
		if k := i - (c.Consumers - scoped); k >= 0 {
			scope.Types = scopes[r.IntN(len(scopes))]
			scope.Name = fmt.Sprintf("some-%d", k+1)
		} else if i == 1 {
			scope = history.Scope{Name: "head-1", AtHead: true}
		}
		s.Scope = append(s.Scope, scope)
	}
	if s.Faults[narrowBuildsOn] > 0 {
		s.Scope = append(s.Scope, grown)
	}
	s.Scope = append(s.Scope, history.Scope{Name: "parts-1", Partitioned: true})
	return s
}

// partitionCounts are what a build may wish for, or an operator.
var partitionCounts = []int{1, 2, 3, 5, 8}

func drawKnobs(r *rand.Rand) Knobs {
	k := Knobs{
		BatchSize:         oneOf(r, 10, 20, 50, 100, 100),
		BatchTimeout:      between(r, 2*time.Second, 4*time.Second),
		Dispatcher:        oneOf(r, worker.DispatcherStrategyPoll, worker.DispatcherStrategyNotify),
		DispatcherEvery:   between(r, 20*time.Millisecond, 100*time.Millisecond),
		Leader:            oneOf(r, worker.LeaderStrategyAdvisory, worker.LeaderStrategyAdvisory, worker.LeaderStrategyLease),
		HeartbeatInterval: between(r, 100*time.Millisecond, 250*time.Millisecond),
		HeartbeatTimeout:  between(r, time.Second, 2*time.Second),
		RebalanceInterval: between(r, 200*time.Millisecond, 600*time.Millisecond),
		GapPolicy:         oneOf(r, worker.GapSkipStale, worker.GapSkipStale, worker.GapSkipStale, worker.GapWait),
		StaleGapThreshold: between(r, 100*time.Millisecond, 700*time.Millisecond),
		HarborLag:         oneOf(r, 0, 0, 0, 8),
		MaxOpenRanges:     oneOf(r, 10_000, 10_000, 10_000, 5),
		Aggregates:        oneOf(r, 40, 80, 160),
		Pause:             30 * time.Millisecond,
		LongestTx:         2 * time.Second,
		Outage:            time.Second,
		MoveEvery:         between(r, 700*time.Millisecond, 2*time.Second),
	}
	return k
}

// Suspension bounds for how long a worker stands still that is to become a zombie. One
// of jobs wakes up soon after others were given its jobs, while they run them.
func (s Scenario) Suspension() (low, high time.Duration) {
	if k := s.Jobs; k != nil {
		given := k.HeartbeatTimeout + k.RescueDelay
		return given, given + 2*time.Second
	}
	return 200 * time.Millisecond, 2 * s.Knobs.HeartbeatTimeout
}

// Outage is after how long at most a crashed worker is replaced.
func (s Scenario) Outage() time.Duration {
	if s.Jobs != nil {
		return s.Jobs.Outage
	}
	return s.Knobs.Outage
}

// EndBound is how long a worker may take to end that is told to: to finish what it has
// in hand, and to leave.
func (s Scenario) EndBound(b harness.Bounds) time.Duration {
	if s.Jobs != nil {
		return s.Jobs.ShutdownTimeout + b.Of(leavingJobs)
	}
	return s.Knobs.BatchTimeout + b.Of(leaving)
}

// leaving is how long a worker takes to leave, beyond a batch in hand, and leavingJobs
// how long one of jobs takes to store what became of its jobs, and to leave.
const (
	leaving     = 10 * time.Second
	leavingJobs = 30 * time.Second
)

func (k Knobs) strict() bool { return k.GapPolicy == worker.GapWait }

// Lines are the drawn knobs as a person reads them.
func (s Scenario) Lines() []oracle.Line {
	if s.Jobs != nil {
		return s.Jobs.lines(s.Faults)
	}
	k := s.Knobs
	dispatcher := string(k.Dispatcher)
	if k.Dispatcher == worker.DispatcherStrategyPoll {
		dispatcher += fmt.Sprintf(" every %v", k.DispatcherEvery)
	}
	gaps := string(k.GapPolicy)
	if k.GapPolicy == worker.GapSkipStale {
		gaps += fmt.Sprintf(" after %v, %d positions behind the head, %d ranges at most", k.StaleGapThreshold, k.HarborLag, k.MaxOpenRanges)
	}
	var scoped []string
	for _, c := range s.Scope {
		if len(c.Types) > 0 {
			scoped = append(scoped, fmt.Sprintf("%s (%s)", c.Name, strings.Join(c.Types, ", ")))
		}
	}
	lines := []oracle.Line{
		{Name: "faults", Value: s.Faults.String()},
		{Name: "batch", Value: fmt.Sprintf("%d events, at most %v", k.BatchSize, k.BatchTimeout)},
		{Name: "dispatcher", Value: dispatcher},
		{Name: "leader", Value: string(k.Leader)},
		{Name: "heartbeat", Value: fmt.Sprintf("every %v, dead after %v", k.HeartbeatInterval, k.HeartbeatTimeout)},
		{Name: "rebalance", Value: fmt.Sprintf("every %v", k.RebalanceInterval)},
		{Name: "open gaps", Value: gaps},
		{Name: "transactions", Value: fmt.Sprintf("open for up to %v", k.LongestTx)},
		{Name: "aggregates", Value: fmt.Sprintf("%d and more of each of %d types", k.Aggregates, len(aggregateTypes))},
		{Name: "assignments", Value: fmt.Sprintf("moved about every %v per consumer, if they are", k.MoveEvery)},
	}
	if len(scoped) > 0 {
		lines = append(lines, oracle.Line{Name: "scoped", Value: strings.Join(scoped, ", ")})
	}
	return lines
}

func oneOf[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// between draws a duration in whole tens of milliseconds.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	const step = 10 * time.Millisecond
	return low + time.Duration(r.Int64N(int64((high-low)/step)+1))*step
}

func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

// execModes are the ways in which pgx can send a statement.
var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement,
	pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}
