package events

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/harness"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// Scenario is all that the seed decides before a run of events begins.
type Scenario struct {
	Seed   uint64
	Knobs  Knobs
	Faults map[string]float64
	Scope  []history.Scope // the consumers

	settings map[string]string // of the sessions of one worker, beside the usual ones
}

// Lines are the drawn knobs as a person reads them.
func (s Scenario) Lines() []oracle.Line {
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

// partitionCounts are the numbers of parts that a build or an operator may demand.
var partitionCounts = []int{1, 2, 3, 5, 8}

// DrawKnobs draws the settings of a run.
func DrawKnobs(r *rand.Rand) Knobs {
	k := Knobs{
		BatchSize:         fault.OneOf(r, 10, 20, 50, 100, 100),
		BatchTimeout:      fault.Between(r, 2*time.Second, 4*time.Second),
		Dispatcher:        fault.OneOf(r, worker.DispatcherStrategyPoll, worker.DispatcherStrategyNotify),
		DispatcherEvery:   fault.Between(r, 20*time.Millisecond, 100*time.Millisecond),
		Leader:            fault.OneOf(r, worker.LeaderStrategyAdvisory, worker.LeaderStrategyAdvisory, worker.LeaderStrategyLease),
		HeartbeatInterval: fault.Between(r, 100*time.Millisecond, 250*time.Millisecond),
		HeartbeatTimeout:  fault.Between(r, time.Second, 2*time.Second),
		RebalanceInterval: fault.Between(r, 200*time.Millisecond, 600*time.Millisecond),
		GapPolicy:         fault.OneOf(r, worker.GapSkipStale, worker.GapSkipStale, worker.GapSkipStale, worker.GapWait),
		StaleGapThreshold: fault.Between(r, 100*time.Millisecond, 700*time.Millisecond),
		HarborLag:         fault.OneOf(r, 0, 0, 0, 8),
		MaxOpenRanges:     fault.OneOf(r, 10_000, 10_000, 10_000, 5),
		Aggregates:        fault.OneOf(r, 40, 80, 160),
		Pause:             30 * time.Millisecond,
		LongestTx:         2 * time.Second,
		Outage:            time.Second,
		MoveEvery:         fault.Between(r, 700*time.Millisecond, 2*time.Second),
	}
	return k
}

// leaving is how long a worker takes to leave, beyond a batch in flight.
const leaving = 10 * time.Second

// EndBound is how long a worker that is told to end may take: to finish the batch in flight, and to
// leave.
func (k Knobs) EndBound(b harness.Bounds) time.Duration { return k.BatchTimeout + b.Of(leaving) }

func (k Knobs) strict() bool { return k.GapPolicy == worker.GapWait }
