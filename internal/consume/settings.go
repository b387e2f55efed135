package consume

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// The types of options, as package worker documents them.
type (
	DispatcherStrategy string
	LeaderStrategy     string
	AssignmentStrategy string
	GapPolicy          string
	FailurePolicy      string

	BatchFunc  = func(ctx context.Context, b observe.Batch) error
	HandleFunc = func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error
	Decoder    = func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error)
)

// The values of each type. The first is the default.
const (
	DispatcherStrategyPoll   DispatcherStrategy = "poll"
	DispatcherStrategyNotify DispatcherStrategy = "notify"
	LeaderStrategyAdvisory   LeaderStrategy     = "advisory"
	LeaderStrategyLease      LeaderStrategy     = "lease"
	AssignRoundRobin         AssignmentStrategy = "round-robin"
	AssignSticky             AssignmentStrategy = "sticky"
	GapSkipStale             GapPolicy          = "skip-stale"
	GapWait                  GapPolicy          = "wait"
	FailStop                 FailurePolicy      = "stop"
	FailPause                FailurePolicy      = "pause"
	FailDeadLetter           FailurePolicy      = "dead-letter"
)

var dispatcherStrategies = []DispatcherStrategy{DispatcherStrategyPoll, DispatcherStrategyNotify}
var leaderStrategies = []LeaderStrategy{LeaderStrategyAdvisory, LeaderStrategyLease}
var assignmentStrategies = []AssignmentStrategy{AssignRoundRobin, AssignSticky}
var gapPolicies = []GapPolicy{GapSkipStale, GapWait}
var failurePolicies = []FailurePolicy{FailStop, FailPause, FailDeadLetter}

// Config is the configuration that the options of package worker set. They document each
// field. Start refuses values out of range, see optionTable.
type Config struct {
	BatchSize              int
	BatchPause             time.Duration
	BatchTimeout           time.Duration
	MaxConsecutiveFailures int
	FailurePolicy          FailurePolicy
	RetryLimit             time.Duration
	ShutdownTimeout        time.Duration

	PollInterval    time.Duration
	MaxPollInterval time.Duration

	DispatcherStrategy     DispatcherStrategy
	DispatcherInterval     time.Duration
	NotifyConnectionString string
	NotifyChannel          string

	HeartbeatInterval time.Duration
	HeartbeatTimeout  time.Duration
	RebalanceInterval time.Duration
	LeaderStrategy    LeaderStrategy
	Hostname          string

	AssignmentStrategy AssignmentStrategy

	StaleGapThreshold time.Duration
	StaleGapHarborLag int
	GapPolicy         GapPolicy
	MaxOpenRanges     int

	GapSkipRetention time.Duration

	Observers []observe.Observer
	Loggers   []observe.Observer

	Decoder          Decoder
	BatchMiddleware  func(next BatchFunc) BatchFunc
	HandleMiddleware func(next HandleFunc) HandleFunc

	WorkerNodesTable         string
	ConsumerAssignmentsTable string
	ConsumerCheckpointsTable string
	ConsumerGapSkipsTable    string
	LeaderElectionTable      string
}
