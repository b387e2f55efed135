package worker

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/pgfrontier/worker/internal/consume"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// DispatcherStrategy is how a worker learns of new events.
type DispatcherStrategy = consume.DispatcherStrategy

const (
	// DispatcherStrategyPoll polls the log once per DispatcherInterval. It works
	// everywhere, also behind a transaction-pooling proxy.
	DispatcherStrategyPoll = consume.DispatcherStrategyPoll
	// DispatcherStrategyNotify listens on a direct connection of its own. It also polls
	// once a second, in case a notification was lost.
	DispatcherStrategyNotify = consume.DispatcherStrategyNotify
)

// LeaderStrategy is how workers elect the leader, which assigns the consumers.
type LeaderStrategy = consume.LeaderStrategy

const (
	// LeaderStrategyAdvisory holds a session advisory lock. A dead leader is
	// replaced as soon as the server notices that its connection is gone.
	LeaderStrategyAdvisory = consume.LeaderStrategyAdvisory
	// LeaderStrategyLease holds a row for a limited time. It works behind a
	// transaction-pooling proxy.
	LeaderStrategyLease = consume.LeaderStrategyLease
)

// AssignmentStrategy is how the leader assigns the consumers.
type AssignmentStrategy = consume.AssignmentStrategy

const (
	// AssignRoundRobin assigns the consumers, sorted by name, in turn to the workers,
	// sorted by id. The assignment depends only on the live workers.
	AssignRoundRobin = consume.AssignRoundRobin
	// AssignSticky assigns as evenly, and moves as few consumers as possible.
	AssignSticky = consume.AssignSticky
)

// GapPolicy is what happens to positions whose transaction stays open.
type GapPolicy = consume.GapPolicy

const (
	// GapSkipStale passes a transaction that stays open longer than StaleGapThreshold. If
	// the transaction commits, its events are delivered late.
	GapSkipStale = consume.GapSkipStale
	// GapWait waits for every transaction, however long it is open. It keeps strict global
	// order. Only an operator's skip of an event passes earlier positions that are still being
	// written.
	GapWait = consume.GapWait
)

// FailurePolicy is what happens when a consumer has failed
// MaxConsecutiveFailures times in a row.
type FailurePolicy = consume.FailurePolicy

const (
	// FailStop ends the worker: Start returns [ErrConsecutiveFailures] with the cause.
	FailStop = consume.FailStop
	// FailPause pauses the consumer in all workers, until an operator resumes it (package
	// ops). The other consumers continue.
	FailPause = consume.FailPause
	// FailDeadLetter makes the failing event a dead letter, in the transaction that moves the
	// checkpoint, and the consumer continues. Later events of the aggregate, or of the consumer's
	// own key ([consumer.ByKey]), become dead letters too. An operator has them retried in order,
	// or discarded (package ops).
	FailDeadLetter = consume.FailDeadLetter
)

// BatchFunc runs a batch: its handlers and its commit.
type BatchFunc = func(ctx context.Context, b observe.Batch) error

// HandleFunc is a call of a handler. It has one event, or several for a
// [consumer.BatchConsumer].
type HandleFunc = func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error

// Decoder returns an event as handlers get it, see [WithDecoder].
type Decoder = func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error)

// Config has a field per option. [DefaultConfig] returns the defaults. Validate and
// String are for programs that check or show their settings.
type Config = consume.Config

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return consume.DefaultConfig() }

// Option changes one setting of a worker.
type Option func(*Config)

// WithBatchSize sets the most events of a batch: 1 to 100,000, default 100. The first batch of
// a consumer holds at most 10. Batches of a slow handler hold fewer, so that a batch takes
// about a quarter of BatchTimeout.
func WithBatchSize(n int) Option { return func(c *Config) { c.BatchSize = n } }

// WithBatchPause sets a pause after a full batch, 0 to 1h, default 0. It limits the load
// of a consumer that catches up to BatchSize / BatchPause events.
func WithBatchPause(d time.Duration) Option { return func(c *Config) { c.BatchPause = d } }

// WithBatchTimeout limits a batch from the lock of its checkpoint to the end of its commit:
// 10ms to 24h, default 30s. A batch that takes longer is rolled back and counts as a
// failure.
//
// After half of the time no further event begins. The batch commits the handled events, and
// the others follow in the next batch. A [consumer.BatchConsumer] has all events in one
// call, so its next batch has at most half as many. No single event counts as failed then.
func WithBatchTimeout(d time.Duration) Option { return func(c *Config) { c.BatchTimeout = d } }

// WithMaxConsecutiveFailures sets the number of failures in a row of one consumer at which
// the FailurePolicy applies: 1 to 1,000,000, default 5. A failed batch of several events is
// narrowed down to the failing event, which is then tried alone. A failure counts only if
// its event was alone or was named.
func WithMaxConsecutiveFailures(n int) Option {
	return func(c *Config) { c.MaxConsecutiveFailures = n }
}

// WithFailurePolicy sets the treatment of a consumer, or of the event, that keeps failing.
// The default is FailStop.
func WithFailurePolicy(p FailurePolicy) Option { return func(c *Config) { c.FailurePolicy = p } }

// WithRetryLimit sets how long the database may fail before the worker ends with ErrOutage:
// 2 x HeartbeatInterval to 1 year. The default, 0, is for ever. Failures are missing
// heartbeats, and batches that fail through no fault of their handler. Until the limit the
// worker retries, after pauses of up to 30 seconds. A success of the consumer restarts the
// time.
func WithRetryLimit(d time.Duration) Option { return func(c *Config) { c.RetryLimit = d } }

// WithShutdownTimeout limits how long a stopping worker waits for the batches in flight:
// 10ms to 24h. The default, 0, waits as long as BatchTimeout allows. Batches that take
// longer are rolled back, and handled again where their consumer runs next. Start returns
// at most ten seconds later, see [ErrHandlerOverdue].
func WithShutdownTimeout(d time.Duration) Option { return func(c *Config) { c.ShutdownTimeout = d } }

// WithBatchMiddleware wraps every batch, for tracing. The middleware is called when the
// batch holds its checkpoint. next runs the handlers and the commit, with the context that
// next receives. The middleware must call next once. The result of next stands, whatever
// the middleware returns. Of several middlewares, the first is the outermost.
func WithBatchMiddleware(m func(next BatchFunc) BatchFunc) Option {
	return func(c *Config) { c.BatchMiddleware = nested(c.BatchMiddleware, m) }
}

// nested wraps one middleware in another. Either may be nil.
func nested[F any](outer, inner func(next F) F) func(next F) F {
	switch {
	case outer == nil:
		return inner
	case inner == nil:
		return outer
	}
	return func(next F) F { return outer(inner(next)) }
}

// WithHandleMiddleware wraps every call of a handler. The middleware gets the transaction
// and the events of the call, as the handler gets them. next runs the handler on these
// events, with the context that next receives. The middleware must call next once. The
// context must derive from the middleware's, because [consumer.Info] reads it.
//
// An error of the handler counts also if the middleware hides it. Any other error of the
// middleware, and a panic, counts as the handler's.
//
// This middleware is for tracing that needs the events, such as links to the traces of
// their producers. [WithBatchMiddleware] is for tracing that needs the outcome, since only
// a batch knows whether it was committed. Of several middlewares, the first is the
// outermost.
func WithHandleMiddleware(m func(next HandleFunc) HandleFunc) Option {
	return func(c *Config) { c.HandleMiddleware = nested(c.HandleMiddleware, m) }
}

// WithDecoder sets the function that turns a stored event into the event for handlers. It
// upcasts old versions, or decrypts. It is called at each delivery of an event, within
// the batch's transaction and BatchTimeout, before any middleware of the handler. Several
// goroutines call it. [consumer.Info] reads its context.
//
// An error or a panic is a failure of the consumer's handler at this event. The event is
// tried again, and the FailurePolicy applies. The decoder may change the event's type,
// version, payload, metadata and time. A change of its position, its aggregate or one of
// its ids is an error. Aggregate types, partition keys and dead letters use the stored
// event.
func WithDecoder(d Decoder) Option { return func(c *Config) { c.Decoder = d } }

// WithPollInterval sets the first retry pause, and how often an idle worker re-reads its
// checkpoints: 1ms to 1h, default 1s. New events do not depend on it: the dispatcher finds
// them.
func WithPollInterval(d time.Duration) Option { return func(c *Config) { c.PollInterval = d } }

// WithMaxPollInterval sets the limit up to which PollInterval doubles: PollInterval to 24h,
// default 30s.
func WithMaxPollInterval(d time.Duration) Option { return func(c *Config) { c.MaxPollInterval = d } }

// WithDispatcherStrategy sets how the worker learns of new events. The default is
// DispatcherStrategyPoll.
func WithDispatcherStrategy(s DispatcherStrategy) Option {
	return func(c *Config) { c.DispatcherStrategy = s }
}

// WithDispatcherInterval sets how often DispatcherStrategyPoll, [Worker.WaitFor] and
// [Waiter] poll: 1ms to 1h, default 200ms.
func WithDispatcherInterval(d time.Duration) Option {
	return func(c *Config) { c.DispatcherInterval = d }
}

// WithNotifyConnectionString sets the connection on which DispatcherStrategyNotify listens.
// The connection must lead directly to PostgreSQL: LISTEN does not work through a
// transaction-pooling proxy.
func WithNotifyConnectionString(s string) Option {
	return func(c *Config) { c.NotifyConnectionString = s }
}

// WithNotifyChannel sets the channel that the event store notifies. The default is
// "worker_events".
func WithNotifyChannel(channel string) Option { return func(c *Config) { c.NotifyChannel = channel } }

// WithHeartbeatInterval sets how often the worker reports that it is alive: 10ms to 1h,
// default 5s.
func WithHeartbeatInterval(d time.Duration) Option {
	return func(c *Config) { c.HeartbeatInterval = d }
}

// WithHeartbeatTimeout sets how long after the last heartbeat the other workers consider
// this worker dead: 2 x HeartbeatInterval to 24h, default 30s.
func WithHeartbeatTimeout(d time.Duration) Option { return func(c *Config) { c.HeartbeatTimeout = d } }

// WithRebalanceInterval sets how often the leader checks the assignments: 10ms to 1h,
// default 5s. The leader reacts sooner to workers that join or leave.
func WithRebalanceInterval(d time.Duration) Option {
	return func(c *Config) { c.RebalanceInterval = d }
}

// WithLeaderStrategy sets how the workers elect a leader. All workers of one set of tables
// must use the same strategy. The default is LeaderStrategyAdvisory.
func WithLeaderStrategy(s LeaderStrategy) Option { return func(c *Config) { c.LeaderStrategy = s } }

// WithHostname names the machine in the table of workers, in at most 200 bytes. The default
// is the system's host name. Several workers may share a name: their IDs distinguish them.
func WithHostname(name string) Option { return func(c *Config) { c.Hostname = name } }

// WithAssignmentStrategy sets how the leader assigns the consumers. The leader's setting
// applies, so all workers of one set of tables should use the same strategy. The default is
// AssignRoundRobin.
func WithAssignmentStrategy(s AssignmentStrategy) Option {
	return func(c *Config) { c.AssignmentStrategy = s }
}

// WithStaleGapThreshold sets how long an open transaction may hold back the events behind its
// positions (GapSkipStale): 10ms to 24h, default 30s.
func WithStaleGapThreshold(d time.Duration) Option {
	return func(c *Config) { c.StaleGapThreshold = d }
}

// WithStaleGapHarborLag sets how many positions consumers stay behind the head when they
// pass a transaction that stays open: 0 to 1,000,000, default 0.
func WithStaleGapHarborLag(n int) Option { return func(c *Config) { c.StaleGapHarborLag = n } }

// WithGapPolicy sets what happens to positions whose transaction stays open. The default is
// GapSkipStale.
func WithGapPolicy(p GapPolicy) Option { return func(c *Config) { c.GapPolicy = p } }

// WithMaxOpenRanges limits the ranges of positions in doubt that a consumer may have
// passed: 1 to 1,000,000, default 10,000. At the limit the consumer waits.
func WithMaxOpenRanges(n int) Option { return func(c *Config) { c.MaxOpenRanges = n } }

// WithGapSkipRetention sets how long the audit table keeps rows of positions that are void
// or were delivered late: 100ms to 10 years. The default, 0, is for ever. Rows of open
// positions are always kept.
func WithGapSkipRetention(d time.Duration) Option {
	return func(c *Config) { c.GapSkipRetention = d }
}

// WithObserver adds observers of the worker's events. They are called in the order in which
// they were added.
func WithObserver(o ...observe.Observer) Option {
	return func(c *Config) { c.Observers = append(c.Observers, o...) }
}

// WithSlog logs the worker's events, as [observe.Log] does. Without a logger, warnings and
// errors go to [slog.Default].
func WithSlog(l *slog.Logger) Option { return withLog(observe.Log(l)) }

// WithLogger logs the worker's events to a [store.Logger]. With nil nothing is logged. A
// logger of [store.NewSlogLogger] is treated as WithSlog treats its *slog.Logger.
func WithLogger(l store.Logger) Option { return withLog(observe.LogTo(l)) }

func withLog(o observe.Observer) Option {
	return func(c *Config) { c.Loggers = append(c.Loggers, o) }
}

// WithNames sets the names of the tables. The default is the zero value. The event store has its
// own WithNames.
func WithNames(n store.Names) Option { return func(c *Config) { c.Names = n } }

// WithWorkerNodesTable sets the field WorkerNodes of the names.
func WithWorkerNodesTable(name string) Option { return func(c *Config) { c.Names.WorkerNodes = name } }

// WithConsumerAssignmentsTable sets the field ConsumerAssignments of the names.
func WithConsumerAssignmentsTable(name string) Option {
	return func(c *Config) { c.Names.ConsumerAssignments = name }
}

// WithConsumerCheckpointsTable sets the field ConsumerCheckpoints of the names.
func WithConsumerCheckpointsTable(name string) Option {
	return func(c *Config) { c.Names.ConsumerCheckpoints = name }
}

// WithConsumerGapSkipsTable sets the field ConsumerGapSkips of the names.
func WithConsumerGapSkipsTable(name string) Option {
	return func(c *Config) { c.Names.ConsumerGapSkips = name }
}

// WithLeaderElectionTable sets the field LeaderElection of the names.
func WithLeaderElectionTable(name string) Option {
	return func(c *Config) { c.Names.LeaderElection = name }
}
