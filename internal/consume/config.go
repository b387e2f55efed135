package consume

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
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

	BatchFunc  = batch.Func
	HandleFunc = batch.HandleFunc
	Decoder    = batch.Decoder
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

	Names store.Names // without those of the event store, which names its own
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	c := Config{}
	for _, s := range optionTable {
		s.reset(&c)
	}
	return c
}

// Validate returns an error for every setting that is out of range, with its option, its
// value and the range.
func (c Config) Validate() error {
	var all []error
	for _, s := range optionTable {
		if err := s.validate(&c); err != nil {
			all = append(all, err)
		}
	}
	return errtext.Join(all...)
}

// String returns every setting as the option that would set it, one a line. It omits the
// content of the connection string.
func (c Config) String() string {
	var b strings.Builder
	for _, s := range optionTable {
		b.WriteString(s.print(&c))
	}
	return b.String()
}

// GoString returns String, so that %#v does not show the connection string either.
func (c Config) GoString() string { return c.String() }

// checkNotifyConnection checks the connection string that DispatcherStrategyNotify needs.
func checkNotifyConnection(c *Config) error {
	if c.DispatcherStrategy != DispatcherStrategyNotify {
		return nil
	}
	if c.NotifyConnectionString == "" {
		return errors.New("WithDispatcherStrategy: DispatcherStrategyNotify needs WithNotifyConnectionString, a direct connection to PostgreSQL")
	}
	if err := listen.Check(c.NotifyConnectionString); err != nil {
		return fmt.Errorf("WithNotifyConnectionString: %w", err)
	}
	return nil
}

// migrations returns the names of the tables for the check of the schema.
func (c Config) migrations() *migrations.Config { return &migrations.Config{Names: c.Names} }

const day = 24 * time.Hour

// optionTable lists the options with their defaults and ranges, in the order in which
// Config prints them. A new option is a field of Config, a line here and its With function.
var optionTable = []setting{
	number[int]{option: "WithBatchSize", at: func(c *Config) *int { return &c.BatchSize }, standard: 100, low: 1, high: 100_000},
	duration{option: "WithBatchPause", at: func(c *Config) *time.Duration { return &c.BatchPause }, high: time.Hour},
	duration{option: "WithBatchTimeout", at: func(c *Config) *time.Duration { return &c.BatchTimeout }, standard: 30 * time.Second, low: 10 * time.Millisecond, high: day},
	number[int]{option: "WithMaxConsecutiveFailures", at: func(c *Config) *int { return &c.MaxConsecutiveFailures }, standard: 5, low: 1, high: 1_000_000},
	choice[FailurePolicy]{"WithFailurePolicy", func(c *Config) *FailurePolicy { return &c.FailurePolicy }, []FailurePolicy{FailStop, FailPause, FailDeadLetter}},
	duration{option: "WithRetryLimit", at: func(c *Config) *time.Duration { return &c.RetryLimit }, orZero: true, from: twoHeartbeats, of: "2 x WithHeartbeatInterval", high: 365 * day},
	duration{option: "WithShutdownTimeout", at: func(c *Config) *time.Duration { return &c.ShutdownTimeout }, orZero: true, low: 10 * time.Millisecond, high: day},
	duration{option: "WithPollInterval", at: func(c *Config) *time.Duration { return &c.PollInterval }, standard: time.Second, low: time.Millisecond, high: time.Hour},
	duration{option: "WithMaxPollInterval", at: func(c *Config) *time.Duration { return &c.MaxPollInterval }, standard: 30 * time.Second, from: func(c *Config) time.Duration { return c.PollInterval }, of: "WithPollInterval", high: day},
	choice[DispatcherStrategy]{"WithDispatcherStrategy", func(c *Config) *DispatcherStrategy { return &c.DispatcherStrategy }, []DispatcherStrategy{DispatcherStrategyPoll, DispatcherStrategyNotify}},
	duration{option: "WithDispatcherInterval", at: func(c *Config) *time.Duration { return &c.DispatcherInterval }, standard: 200 * time.Millisecond, low: time.Millisecond, high: time.Hour},
	phrase{option: "WithNotifyConnectionString", at: func(c *Config) *string { return &c.NotifyConnectionString }, secret: true, check: checkNotifyConnection},
	phrase{option: "WithNotifyChannel", at: func(c *Config) *string { return &c.NotifyChannel }, standard: "worker_events", check: func(c *Config) error { return ident.Check("WithNotifyChannel", c.NotifyChannel) }},
	duration{option: "WithHeartbeatInterval", at: func(c *Config) *time.Duration { return &c.HeartbeatInterval }, standard: 5 * time.Second, low: 10 * time.Millisecond, high: time.Hour},
	duration{option: "WithHeartbeatTimeout", at: func(c *Config) *time.Duration { return &c.HeartbeatTimeout }, standard: 30 * time.Second, from: twoHeartbeats, of: "2 x WithHeartbeatInterval", high: day},
	duration{option: "WithRebalanceInterval", at: func(c *Config) *time.Duration { return &c.RebalanceInterval }, standard: 5 * time.Second, low: 10 * time.Millisecond, high: time.Hour},
	choice[LeaderStrategy]{"WithLeaderStrategy", func(c *Config) *LeaderStrategy { return &c.LeaderStrategy }, []LeaderStrategy{LeaderStrategyAdvisory, LeaderStrategyLease}},
	phrase{option: "WithHostname", at: func(c *Config) *string { return &c.Hostname }, check: func(c *Config) error { return ident.CheckHost("WithHostname", c.Hostname) }},
	choice[AssignmentStrategy]{"WithAssignmentStrategy", func(c *Config) *AssignmentStrategy { return &c.AssignmentStrategy }, []AssignmentStrategy{AssignRoundRobin, AssignSticky}},
	duration{option: "WithStaleGapThreshold", at: func(c *Config) *time.Duration { return &c.StaleGapThreshold }, standard: 30 * time.Second, low: 10 * time.Millisecond, high: day},
	number[int]{option: "WithStaleGapHarborLag", at: func(c *Config) *int { return &c.StaleGapHarborLag }, high: 1_000_000},
	choice[GapPolicy]{"WithGapPolicy", func(c *Config) *GapPolicy { return &c.GapPolicy }, []GapPolicy{GapSkipStale, GapWait}},
	number[int]{option: "WithMaxOpenRanges", at: func(c *Config) *int { return &c.MaxOpenRanges }, standard: 10_000, low: 1, high: 1_000_000},
	duration{option: "WithGapSkipRetention", at: func(c *Config) *time.Duration { return &c.GapSkipRetention }, orZero: true, low: 100 * time.Millisecond, high: 3650 * day},
	naming{},
}

func twoHeartbeats(c *Config) time.Duration { return 2 * c.HeartbeatInterval }

// setting describes one option.
type setting interface {
	// reset sets the option to its default.
	reset(c *Config)
	// validate returns an error if the value is out of range. The error names the option,
	// the value and the range.
	validate(c *Config) error
	// print returns the option and its value, or "" to print nothing.
	print(c *Config) string
}

func printed(option string, value any) string { return fmt.Sprintf("%s(%v)\n", option, value) }

// number is an option with a numeric range.
type number[T int | time.Duration] struct {
	option              string
	at                  func(c *Config) *T
	standard, low, high T
	from                func(c *Config) T // the lower bound, in place of low
	of                  string            // names the option of from
	orZero              bool              // 0 is allowed, too
}

type duration = number[time.Duration]

func (n number[T]) reset(c *Config) { *n.at(c) = n.standard }

func (n number[T]) validate(c *Config) error {
	low := n.low
	if n.from != nil {
		low = n.from(c)
	}
	return errtext.Range(n.option, *n.at(c), low, n.high, n.orZero, n.of)
}

func (n number[T]) print(c *Config) string { return printed(n.option, *n.at(c)) }

// choice is an option with one of several values. The first is the default.
type choice[T ~string] struct {
	option  string
	at      func(c *Config) *T
	allowed []T
}

func (o choice[T]) reset(c *Config) { *o.at(c) = o.allowed[0] }

func (o choice[T]) validate(c *Config) error {
	quoted := make([]string, len(o.allowed))
	for i, a := range o.allowed {
		if *o.at(c) == a {
			return nil
		}
		quoted[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Errorf("%s: %s is unknown, allowed are %s", o.option, errtext.Value(*o.at(c)), strings.Join(quoted, " and "))
}

func (o choice[T]) print(c *Config) string { return printed(o.option, *o.at(c)) }

// phrase is an option with a string.
type phrase struct {
	option   string
	at       func(c *Config) *string
	standard string
	check    func(c *Config) error // nil: any string is allowed
	secret   bool                  // its value is not printed
}

func (o phrase) reset(c *Config) { *o.at(c) = o.standard }

func (o phrase) validate(c *Config) error {
	if o.check == nil {
		return nil
	}
	return o.check(c)
}

func (o phrase) print(c *Config) string {
	switch value := *o.at(c); {
	case !o.secret:
		return printed(o.option, value)
	case value != "":
		return printed(o.option, "***")
	}
	return ""
}

// naming is the option WithNames.
type naming struct{}

func (naming) reset(c *Config) { c.Names = store.Names{} }

func (naming) validate(c *Config) error {
	if _, err := tables.Parse(c.Names); err != nil {
		return fmt.Errorf("WithNames: %w", err)
	}
	return nil
}

func (naming) print(c *Config) string { return printed("WithNames", tables.Given(c.Names)) }
