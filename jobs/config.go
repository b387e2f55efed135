package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/listen"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// config holds what the options set.
type config struct {
	names            store.Names
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
	hooksGiven       int
	middleware       []Middleware
	extensions       []jobflow.Extension
}

type queueConfig struct {
	name        string
	concurrency int
}

type queuePriority struct {
	name     string
	priority int
}

// mediumPriority is the priority of a queue without a WithQueuePriority.
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
		hostname: jobrun.Hostname(),
	}
}

// Option is an option of [NewWorker].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

// LeaderStrategy is how workers elect a leader. The leader does the work that one worker does for
// all.
type LeaderStrategy string

const (
	// LeaderStrategyAdvisory holds session advisory locks. If a process ends, the others notice at
	// once.
	LeaderStrategyAdvisory LeaderStrategy = "advisory"
	// LeaderStrategyLease holds a row for a limited time. It works behind a proxy that pools
	// transactions. A dead process shows only by missing heartbeats.
	LeaderStrategyLease LeaderStrategy = "lease"
)

// WithQueue makes the worker run jobs of a queue, up to concurrency at once. Without the option,
// the worker runs ten jobs of [DefaultQueue] at once. Give the option once per queue. A full queue
// does not delay others.
func WithQueue(name string, concurrency int) Option {
	return option(func(c *config) { c.queues = append(c.queues, queueConfig{name, concurrency}) })
}

// WithConcurrency bounds how many jobs of all queues run at once. By default only the bounds of the
// queues apply.
func WithConcurrency(total int) Option { return option(func(c *config) { c.concurrency = total }) }

// WithQueuePriority sets which queues get the slots of [WithConcurrency] first. The priority is 1
// to 9, where 1 is first; the default is 5. While a queue has due jobs and free slots of its own,
// no job of a queue with a higher number starts. A queue that does not run out of work may keep the
// other queues from running. Jobs that already run are not stopped. The worker sees that a queue
// has work when it polls the queue or is notified. Among queues of the same number, the first that
// asks gets the slot. Without WithConcurrency the option has no effect.
func WithQueuePriority(queue string, priority int) Option {
	return option(func(c *config) { c.priorities = append(c.priorities, queuePriority{queue, priority}) })
}

// WithClaimBatch bounds how many jobs of a queue one claim takes: 1 to 10,000. While slots are
// left, the next claim follows at once. So other workers get their share of a short queue. By
// default, 0, a claim takes as many jobs as there are free slots, plus the jobs of WithPrefetch.
func WithClaimBatch(n int) Option { return option(func(c *config) { c.claimBatch = n }) }

// WithPrefetch makes the worker claim up to n jobs per queue before there are slots for them. This
// helps with jobs that take about a millisecond. Other workers cannot run a prefetched job. It
// starts before a job of a higher priority that becomes due later. If it expires or is cancelled, it
// does not start. A stop releases the prefetched jobs. The default is 0.
func WithPrefetch(n int) Option { return option(func(c *config) { c.prefetch = n }) }

// WithPollInterval sets how often a worker polls a queue that has fewer jobs than slots: 1 second
// by default. The interval is the first pause, see [WithMaxPollInterval]. A pause is shortened by a
// random part of up to a quarter. The worker starts jobs that become due at their time, without
// waiting for a poll.
func WithPollInterval(d time.Duration) Option {
	return option(func(c *config) { c.pollInterval = d })
}

// WithMaxPollInterval lets the pause between two polls double while the polls find nothing. The
// pause grows up to d, from PollInterval, the default, to 24h. Jobs that the worker knows of are on
// time all the same: jobs that are due later, and jobs that wait for a cap.
//
// With [WithNotifyConnectionString] the worker is notified of every job that this library enqueues
// or releases. Then 30 s is a good value. A job without a notification, such as one of plain SQL,
// starts within d. While the worker detects that notifications do not arrive, the pause is
// PollInterval.
func WithMaxPollInterval(d time.Duration) Option {
	return option(func(c *config) { c.maxPollInterval = d })
}

// WithHeartbeatInterval sets how often the worker sends a heartbeat and reconciles its jobs in
// flight with the database: 5 s by default.
func WithHeartbeatInterval(d time.Duration) Option {
	return option(func(c *config) { c.heartbeat = d })
}

// WithHeartbeatTimeout sets after how long without a heartbeat this worker counts as dead, although
// its session seems to live: 30 s by default.
func WithHeartbeatTimeout(d time.Duration) Option {
	return option(func(c *config) { c.heartbeatTimeout = d })
}

// WithLeaderStrategy sets how workers elect a leader: LeaderStrategyAdvisory by default.
func WithLeaderStrategy(s LeaderStrategy) Option { return option(func(c *config) { c.leader = s }) }

// WithRescueDelay sets for how long a worker must seem dead before others get its jobs: 5 s by
// default. A worker that has only lost its connection is back sooner.
func WithRescueDelay(d time.Duration) Option { return option(func(c *config) { c.rescueDelay = d }) }

// WithShutdownTimeout sets how long a stop waits for the jobs that run. Then the contexts of their
// handlers end. The worker releases the jobs that have not completed, and no attempt is counted as
// a failure. By default a stop waits for as long as the jobs take. Set less than the platform's time
// before SIGKILL.
func WithShutdownTimeout(d time.Duration) Option {
	return option(func(c *config) { c.shutdownTimeout = d })
}

// WithStartLimit sets for how long Start retries while the database cannot be reached: 10ms to a
// year. By default, 0, Start retries for ever. Each failed try is notified as [observe.TaskFailed].
func WithStartLimit(d time.Duration) Option { return option(func(c *config) { c.startLimit = d }) }

// WithRetention sets for how long finished jobs are kept, with their attempts and logs: a week by
// default, 0 for ever. The leader removes the jobs.
//
// SetRetention of package ops sets the retention of a single queue, and there 0 means at once. A job
// of such a queue that completes leaves no row at all. Exceptions: a job with a result, a log or an
// earlier attempt, a job that a process awaits, and a step of a flow. The leader removes those, and
// the jobs that fail. [Client.Get] and [Wait] return [ErrNotFound] for a job without a row. Keys of
// Unique, Once and EnqueueFor hold as ever.
func WithRetention(d time.Duration) Option { return option(func(c *config) { c.retention = d }) }

// WithHostname names the machine in the table of workers. The default is $HOSTNAME or, without one,
// the name that the system gives. A name has at most 200 bytes. Several workers may have the same
// name: their IDs differ.
func WithHostname(name string) Option { return option(func(c *config) { c.hostname = name }) }

// WithStopAfterJobs ends the worker, as Stop does, once it has started n jobs. A further attempt of
// a job counts too. A job that was only prefetched does not count.
func WithStopAfterJobs(n int) Option { return option(func(c *config) { c.stopAfterJobs = n }) }

// WithStopAfter ends the worker, as Stop does, when it has run for d.
func WithStopAfter(d time.Duration) Option { return option(func(c *config) { c.stopAfter = d }) }

// WithObserver adds observers of the worker's events.
func WithObserver(o ...observe.Observer) Option {
	return option(func(c *config) { c.observers = append(c.observers, o...) })
}

// WithLogger logs the worker's events, as [observe.Log] does. By default warnings and errors go to
// [slog.Default]. To silence the worker, give slog.New(slog.DiscardHandler).
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) { c.loggers = append(c.loggers, observe.Log(l)) })
}

// Hooks are called around jobs, by the worker's own goroutines. Any field may be nil. A panic of a
// hook is notified as [observe.HookPanicked]. After a panic of BeforeClaim nothing is claimed, as
// with Skip.
type Hooks struct {
	// BeforeClaim is called before jobs of a queue are claimed. It may skip this claim, or filter
	// the jobs to claim.
	BeforeClaim func(ctx context.Context, queue string) ClaimFilter
	// BeforeHandle is called before the handler of a job, by the goroutine that claims. The calls
	// for jobs of one queue follow one another. The hook must return soon.
	BeforeHandle func(ctx context.Context, job Header)
	// AfterHandle is called once for each call of BeforeHandle, by the goroutine of the handler.
	// The call comes after the handler has returned or was given up.
	//
	// The hook is also called if the handler could not be called, since its transaction got no
	// connection. The hook is also called if another transaction has locked the row of the job, so
	// that the job could not complete.
	//
	// err is what the handler returned, or why the job runs again. The outcome of the job is not
	// stored yet.
	AfterHandle func(ctx context.Context, job Header, err error)
}

// ClaimFilter is what BeforeClaim returns: whether to claim, and which jobs.
type ClaimFilter struct {
	// Skip leaves out the claim. The worker calls the hook again after a PollInterval, and when a
	// job of the queue has ended.
	Skip bool
	// Condition is SQL on the columns of the table of jobs, such as "(args->>'megabytes')::int <=
	// $1". Args are the values of its parameters. String literals of the condition must not contain
	// a $. A claim with a condition reads all jobs that do not meet the condition.
	Condition string
	Args      []any
}

// Middleware is called around each call of a handler. jobs are the jobs of the call: one, unless
// the handler takes batches. The middleware must call next once, with ctx or a context derived from
// ctx. It must return the error of next or another error: nil does not undo an error. If it does
// not call next, it must return an error, such as the error of Snooze. [IsFailure] reports whether
// an error is a failure.
type Middleware func(ctx context.Context, jobs []Header, next func(context.Context) error) error

// WithHooks sets the hooks. Give it once.
func WithHooks(h Hooks) Option {
	return option(func(c *config) { c.hooks, c.hooksGiven = h, c.hooksGiven+1 })
}

// WithMiddleware adds middleware. The first is the outermost.
func WithMiddleware(m ...Middleware) Option {
	return option(func(c *config) { c.middleware = append(c.middleware, m...) })
}

const day = 24 * time.Hour

// validate returns an error that lists every option out of range.
func (c config) validate() error {
	all := c.checkQueues()
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if c.concurrency < 0 {
		fail("WithConcurrency: %d is out of range, it takes 0 for no bound, or more", c.concurrency)
	}
	if c.claimBatch < 0 || c.claimBatch > maxConcurrency {
		fail("WithClaimBatch: %d is out of range, allowed is 1 to %d, or 0 for no bound", c.claimBatch, maxConcurrency)
	}
	all = append(all, c.checkPriorities()...)
	if c.hooksGiven > 1 {
		fail("WithHooks is given %d times, and only the last would be called: call all from one Hooks", c.hooksGiven)
	}
	if slices.ContainsFunc(c.middleware, func(m Middleware) bool { return m == nil }) {
		fail("WithMiddleware: a middleware is nil")
	}
	if c.stopAfterJobs < 0 {
		fail("WithStopAfterJobs: %d is out of range, it takes 0 for no bound, or more", c.stopAfterJobs)
	}
	all = append(all, ident.CheckHost("WithHostname", c.hostname),
		errtext.Range("WithPrefetch", c.prefetch, 0, maxConcurrency, false, ""),
		errtext.Range("WithPollInterval", c.pollInterval, time.Millisecond, time.Hour, false, ""),
		errtext.Range("WithMaxPollInterval", c.maxPollInterval, c.pollInterval, day, true, "WithPollInterval"),
		errtext.Range("WithHeartbeatInterval", c.heartbeat, 10*time.Millisecond, time.Hour, false, ""),
		errtext.Range("WithHeartbeatTimeout", c.heartbeatTimeout, 2*c.heartbeat, day, false, "2 x WithHeartbeatInterval"),
		errtext.Range("WithRescueDelay", c.rescueDelay, 100*time.Millisecond, day, false, ""),
		errtext.Range("WithShutdownTimeout", c.shutdownTimeout, 10*time.Millisecond, 365*day, true, ""),
		errtext.Range("WithRetention", c.retention, time.Second, 36500*day, true, ""),
		errtext.Range("WithStartLimit", c.startLimit, 10*time.Millisecond, 365*day, true, ""),
		errtext.Range("WithStopAfter", c.stopAfter, time.Millisecond, 365*day, true, ""))
	if c.leader != LeaderStrategyAdvisory && c.leader != LeaderStrategyLease {
		fail("WithLeaderStrategy: %s is unknown, allowed are %q and %q", errtext.Value(c.leader), LeaderStrategyAdvisory, LeaderStrategyLease)
	}
	if c.notify != "" {
		if err := listen.Check(c.notify); err != nil {
			fail("WithNotifyConnectionString: %w", err)
		}
	}
	_, _, err := c.tables()
	return errtext.Join(append(all, err)...)
}

// checkQueues returns the errors of the WithQueue options.
func (c config) checkQueues() (all []error) {
	seen := map[string]bool{}
	for _, q := range c.queues {
		if err := checkQueue("WithQueue", q.name); err != nil {
			all = append(all, err)
		}
		all = append(all, errtext.Range("WithQueue "+errtext.Value(q.name)+": the concurrency", q.concurrency, 1, maxConcurrency, false, ""))
		if seen[q.name] {
			all = append(all, fmt.Errorf("WithQueue %s is given twice", errtext.Value(q.name)))
		}
		seen[q.name] = true
	}
	return all
}

// tables returns the names of the tables of jobs, and of the tables of consumers.
func (c config) tables() (jobs tables.Jobs, events tables.Tables, err error) {
	if jobs, err = tables.ParseJobs(c.names); err == nil {
		events, err = tables.Parse(c.names)
	}
	if err != nil {
		err = fmt.Errorf("WithNames: %w", err)
	}
	return jobs, events, err
}

// checkPriorities returns the errors of the WithQueuePriority options.
func (c *config) checkPriorities() (all []error) {
	seen := map[string]bool{}
	for _, q := range c.priorities {
		all = append(all, errtext.Range("WithQueuePriority "+errtext.Value(q.name), q.priority, 1, 9, false, ""))
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

// served returns the queues that were given, or the default queue.
func (c *config) served() []queueConfig {
	if len(c.queues) == 0 {
		return []queueConfig{{DefaultQueue, 10}}
	}
	return c.queues
}

// maxConcurrency bounds how many jobs one statement claims or starts.
const maxConcurrency = 10_000

var errNoHandlers = errors.New("there are no handlers: add some with Register")
