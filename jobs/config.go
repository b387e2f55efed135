package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/observe"
)

// config is what options set.
type config struct {
	table            string
	notify           string
	queues           []queueConfig
	concurrency      int
	prefetch         int
	claimBatch       int // 0: no bound of its own
	priorities       []queuePriority
	pollInterval     time.Duration
	maxPollInterval  time.Duration // 0: pollInterval
	heartbeat        time.Duration
	heartbeatTimeout time.Duration
	startLimit       time.Duration // 0: none
	leader           LeaderStrategy
	rescueDelay      time.Duration
	shutdownTimeout  time.Duration
	retention        time.Duration
	hostname         string
	stopAfterJobs    int
	stopAfter        time.Duration
	observers        []observe.Observer
	loggers          []observe.Observer // none: warnings and errors go to slog.Default
	hooks            Hooks
	middleware       []Middleware
	events           tables.Names
	companions       []jobflow.Companion
}

type queueConfig struct {
	name        string
	concurrency int
}

type queuePriority struct {
	name     string
	priority int
}

// mediumPriority is that of a queue that was given none.
const mediumPriority = 5

func (c *config) priorityOf(queue string) int {
	for _, q := range c.priorities {
		if q.name == queue {
			return q.priority
		}
	}
	return mediumPriority
}

func defaults() config {
	return config{
		pollInterval: time.Second, heartbeat: 5 * time.Second, heartbeatTimeout: 30 * time.Second,
		leader: LeaderStrategyAdvisory, rescueDelay: 5 * time.Second, retention: 7 * 24 * time.Hour,
		hostname: hostname(), events: tables.Default,
	}
}

// hostname is of the environment, or else of the system.
func hostname() string {
	if h := os.Getenv("HOSTNAME"); h != "" {
		return h
	}
	h, _ := os.Hostname() // it is for people's eyes
	return h
}

// Option is an option of [NewWorker].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

// LeaderStrategy is how workers agree on who does what one of them must do.
type LeaderStrategy string

const (
	// LeaderStrategyAdvisory holds session advisory locks. That a process has ended,
	// the others notice at once.
	LeaderStrategyAdvisory LeaderStrategy = "advisory"
	// LeaderStrategyLease holds a row for a limited time. It works behind a
	// transaction-pooling proxy; who is dead shows by missing heartbeats only.
	LeaderStrategyLease LeaderStrategy = "lease"
)

// WithQueue makes the worker run jobs of a queue, so many at once. Without it, it
// runs ten of [DefaultQueue]. Give it once for each queue.
func WithQueue(name string, concurrency int) Option {
	return option(func(c *config) { c.queues = append(c.queues, queueConfig{name, concurrency}) })
}

// WithConcurrency bounds how many jobs run at once, of all queues together. By
// default the queues' own bounds are all.
func WithConcurrency(total int) Option { return option(func(c *config) { c.concurrency = total }) }

// WithQueuePriority sets which queues get the slots of [WithConcurrency] first: 1 to 9, 1 first,
// 5 by default. While jobs of a queue are due and its own slots are not full, no job of a queue
// with a higher number starts. So a queue that always has work may keep the others from
// running. The jobs that run already are not stopped. A queue is seen to have work when the
// worker polls it, or is notified. Queues of the same number share as they come. Without
// WithConcurrency it has no effect.
func WithQueuePriority(queue string, priority int) Option {
	return option(func(c *config) { c.priorities = append(c.priorities, queuePriority{queue, priority}) })
}

// WithClaimBatch bounds how many jobs of a queue one claim takes: 1 to 10,000. While slots are
// left, the next claim follows at once, so other workers get their share of a short queue. By
// default, 0, a claim takes as many jobs as there are free slots, and WithPrefetch more.
func WithClaimBatch(n int) Option { return option(func(c *config) { c.claimBatch = n }) }

// WithPrefetch makes the worker claim up to so many jobs of each queue before it has
// slots for them. That is worth it for jobs of a millisecond. What is claimed and
// has not started is nobody else's meanwhile; a stop gives it back. 0 by default.
func WithPrefetch(n int) Option { return option(func(c *config) { c.prefetch = n }) }

// WithPollInterval is how often a worker polls a queue that has fewer jobs than slots, a second
// by default: the first pause, see [WithMaxPollInterval]. A random quarter is left out. Jobs that
// become due are started at their time.
func WithPollInterval(d time.Duration) Option {
	return option(func(c *config) { c.pollInterval = d })
}

// WithMaxPollInterval lets the pause between two polls double while nothing is found, up to d:
// PollInterval, the default, to 24h. What the worker knows of is on time for all that: jobs
// that are due later, and those that wait for a cap. With [WithNotifyConnectionString] it hears of
// all that this library enqueues and gives back, so 30 s is a good value there. A job
// that is told nobody, such as one of plain SQL, starts within d. While notifications
// are seen not to arrive, the pause is PollInterval.
func WithMaxPollInterval(d time.Duration) Option {
	return option(func(c *config) { c.maxPollInterval = d })
}

// WithHeartbeatInterval is how often the worker shows that it lives, and looks
// whether its jobs are still its own: every 5 s by default.
func WithHeartbeatInterval(d time.Duration) Option {
	return option(func(c *config) { c.heartbeat = d })
}

// WithHeartbeatTimeout is after what silence this worker counts as dead if its session
// seems to live, 30 s by default.
func WithHeartbeatTimeout(d time.Duration) Option {
	return option(func(c *config) { c.heartbeatTimeout = d })
}

// WithLeaderStrategy is LeaderStrategyAdvisory by default.
func WithLeaderStrategy(s LeaderStrategy) Option { return option(func(c *config) { c.leader = s }) }

// WithRescueDelay is for how long a worker must seem dead before its jobs are given
// to others, 5 s by default. One that has only lost its connection is back sooner.
func WithRescueDelay(d time.Duration) Option { return option(func(c *config) { c.rescueDelay = d }) }

// WithShutdownTimeout is how long a stop waits for the jobs that run. Then their
// contexts end, and what has not completed is given back uncounted. By default it
// waits for as long as they take.
func WithShutdownTimeout(d time.Duration) Option {
	return option(func(c *config) { c.shutdownTimeout = d })
}

// WithStartLimit sets for how long Start tries again while the database cannot be reached: 10ms
// to a year. The default, 0, is for ever. Each try that fails is told to TaskFailed.
func WithStartLimit(d time.Duration) Option { return option(func(c *config) { c.startLimit = d }) }

// WithRetention is for how long finished jobs are kept, with their attempts and
// logs: a week by default, 0 for ever. Package ops sets it for a queue. The leader
// removes them.
func WithRetention(d time.Duration) Option { return option(func(c *config) { c.retention = d }) }

// WithHostname names the machine in the table of workers. By default it is
// $HOSTNAME, or else what the system says. It has at most 200 bytes. Several workers may have one
// name: their IDs tell them apart.
func WithHostname(name string) Option { return option(func(c *config) { c.hostname = name }) }

// WithStopAfterJobs ends the worker, as Stop does, once it has started so many jobs. Each
// attempt counts, and nothing that was only prefetched.
func WithStopAfterJobs(n int) Option { return option(func(c *config) { c.stopAfterJobs = n }) }

// WithStopAfter ends the worker, as Stop does, when it has run for so long.
func WithStopAfter(d time.Duration) Option { return option(func(c *config) { c.stopAfter = d }) }

// WithObserver adds observers of what happens.
func WithObserver(o ...observe.Observer) Option {
	return option(func(c *config) { c.observers = append(c.observers, o...) })
}

// WithLogger logs what happens, as [observe.Log] does. By default warnings and errors go to
// [slog.Default]; slog.New(slog.DiscardHandler) keeps the worker silent.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) { c.loggers = append(c.loggers, observe.Log(l)) })
}

// WithCheckpointsTable names the consumer checkpoints of package worker in this
// database, "consumer_checkpoints" by default, and their audit of gaps. From them
// the leader sees which notes of [Client.EnqueueFor] can go. Where there are no such
// tables, or no such consumer, nothing is removed, and TaskFailed tells.
func WithCheckpointsTable(checkpoints, gapSkips string) Option {
	return option(func(c *config) { c.events.ConsumerCheckpoints, c.events.ConsumerGapSkips = checkpoints, gapSkips })
}

// Hooks are called around jobs, by the worker's own goroutines. Every field may be
// nil. A panic of one is reported as [observe.HookPanicked]. After one of BeforeClaim
// nothing is claimed, as with Skip.
type Hooks struct {
	// BeforeClaim is called before jobs of a queue are claimed. It may leave the
	// claim out this time, or say which jobs it wants.
	BeforeClaim func(ctx context.Context, queue string) Claim
	// BeforeHandle is called before a job's handler, by the goroutine that claims:
	// jobs of a queue one after the other. Return soon.
	BeforeHandle func(ctx context.Context, job Header)
	// AfterHandle is called once for each call of BeforeHandle, by the goroutine of the
	// handler: after the handler has returned or was given up, and also if it could not be
	// called, since no connection could be had for its transaction, or if its job could not
	// be completed, since another transaction has locked the job's row. err is what the handler
	// returned, or why the job runs again. What becomes of the job is not yet stored.
	AfterHandle func(ctx context.Context, job Header, err error)
}

// Claim is what BeforeClaim wants.
type Claim struct {
	// Skip leaves the claim out. The worker asks again after a PollInterval, and
	// when a job of the queue has ended.
	Skip bool
	// Condition is SQL on the columns of the table of jobs, such as
	// "(args->>'megabytes')::int <= $1", with Args for its parameters. It must not
	// have a $ in its texts. A claim with a condition walks over all jobs that do
	// not meet it.
	Condition string
	Args      []any
}

// Middleware is called around each call of a handler, with the jobs that it is
// given, one if it does not take batches. It must call next once, with ctx or a
// context made of it, and return its error or another: nil does not undo an error.
// Without a call of next it must return an error, such as that of Snooze.
// [IsFailure] tells which errors are failures.
type Middleware func(ctx context.Context, jobs []Header, next func(context.Context) error) error

// WithHooks sets the hooks.
func WithHooks(h Hooks) Option { return option(func(c *config) { c.hooks = h }) }

// WithMiddleware adds middleware. The first is the outermost.
func WithMiddleware(m ...Middleware) Option {
	return option(func(c *config) { c.middleware = append(c.middleware, m...) })
}

const day = 24 * time.Hour

// validate reports all that is out of range.
func (c config) validate() error {
	var all []error
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	between := func(option string, d, low, high time.Duration, orZero bool) {
		if (d < low || d > high) && !(orZero && d == 0) {
			fail("%s: %v is out of range, allowed is %v to %v", option, d, low, high)
		}
	}
	seen := map[string]bool{}
	for _, q := range c.queues {
		if err := checkQueue("WithQueue", q.name); err != nil {
			all = append(all, err)
		}
		if q.concurrency < 1 || q.concurrency > maxConcurrency {
			fail("WithQueue %s: a concurrency of %d is out of range, allowed is 1 to %d", errtext.Value(q.name), q.concurrency, maxConcurrency)
		}
		if seen[q.name] {
			fail("WithQueue %s is given twice", errtext.Value(q.name))
		}
		seen[q.name] = true
	}
	if c.concurrency < 0 {
		fail("WithConcurrency: %d is out of range, it takes 0 for no bound, or more", c.concurrency)
	}
	if c.prefetch < 0 || c.prefetch > maxConcurrency {
		fail("WithPrefetch: %d is out of range, allowed is 0 to %d", c.prefetch, maxConcurrency)
	}
	if c.claimBatch < 0 || c.claimBatch > maxConcurrency {
		fail("WithClaimBatch: %d is out of range, allowed is 1 to %d, or 0 for no bound", c.claimBatch, maxConcurrency)
	}
	all = append(all, c.checkPriorities()...)
	if slices.ContainsFunc(c.middleware, func(m Middleware) bool { return m == nil }) {
		fail("WithMiddleware: a middleware is nil")
	}
	if c.stopAfterJobs < 0 {
		fail("WithStopAfterJobs: %d is out of range, it takes 0 for no bound, or more", c.stopAfterJobs)
	}
	if err := ident.CheckHost("WithHostname", c.hostname); err != nil {
		all = append(all, err)
	}
	between("WithPollInterval", c.pollInterval, time.Millisecond, time.Hour, false)
	between("WithMaxPollInterval", c.maxPollInterval, c.pollInterval, day, true)
	between("WithHeartbeatInterval", c.heartbeat, 10*time.Millisecond, time.Hour, false)
	between("WithHeartbeatTimeout", c.heartbeatTimeout, 2*c.heartbeat, day, false)
	between("WithRescueDelay", c.rescueDelay, 100*time.Millisecond, day, false)
	between("WithShutdownTimeout", c.shutdownTimeout, 10*time.Millisecond, 365*day, true)
	between("WithRetention", c.retention, time.Second, 36500*day, true)
	between("WithStartLimit", c.startLimit, 10*time.Millisecond, 365*day, true)
	between("WithStopAfter", c.stopAfter, time.Millisecond, 365*day, true)
	if c.leader != LeaderStrategyAdvisory && c.leader != LeaderStrategyLease {
		fail("WithLeaderStrategy: %s is unknown, allowed are %q and %q", errtext.Value(c.leader), LeaderStrategyAdvisory, LeaderStrategyLease)
	}
	if c.notify != "" {
		if err := listen.Check(c.notify); err != nil {
			fail("WithNotifyConnectionString: %w", err)
		}
	}
	_, err := tables.ParseJobs(c.table, "WithTable")
	_, err2 := tables.Parse(c.events, "WithCheckpointsTable: ")
	return errtext.Join(append(all, err, err2)...)
}

// checkPriorities reports what is wrong with WithQueuePriority.
func (c *config) checkPriorities() (all []error) {
	seen := map[string]bool{}
	for _, q := range c.priorities {
		if q.priority < 1 || q.priority > 9 {
			all = append(all, fmt.Errorf("WithQueuePriority %s: %d is out of range, allowed is 1 to 9", errtext.Value(q.name), q.priority))
		}
		if !slices.ContainsFunc(c.served(), func(s queueConfig) bool { return s.name == q.name }) {
			all = append(all, fmt.Errorf("WithQueuePriority %s: the worker does not serve this queue: name it with WithQueue", errtext.Value(q.name)))
		}
		if seen[q.name] {
			all = append(all, fmt.Errorf("WithQueuePriority %s is given twice", errtext.Value(q.name)))
		}
		seen[q.name] = true
	}
	return all
}

// served are the queues that were named, or the default one.
func (c *config) served() []queueConfig {
	if len(c.queues) == 0 {
		return []queueConfig{{DefaultQueue, 10}}
	}
	return c.queues
}

// maxConcurrency bounds what one statement claims, and starts.
const maxConcurrency = 10_000

var errNoHandlers = errors.New("there are no handlers: add some with Register")
