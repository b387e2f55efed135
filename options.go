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
	// DispatcherStrategyPoll looks every DispatcherInterval. It works
	// everywhere, also behind a transaction-pooling proxy.
	DispatcherStrategyPoll = consume.DispatcherStrategyPoll
	// DispatcherStrategyNotify listens on a direct connection of its own and
	// looks every second besides, in case a notification was lost.
	DispatcherStrategyNotify = consume.DispatcherStrategyNotify
)

// LeaderStrategy is how workers agree on who assigns consumers.
type LeaderStrategy = consume.LeaderStrategy

const (
	// LeaderStrategyAdvisory holds a session advisory lock. A dead leader is
	// replaced as soon as the server notices that its connection is gone.
	LeaderStrategyAdvisory = consume.LeaderStrategyAdvisory
	// LeaderStrategyLease holds a row for a limited time. It works behind a
	// transaction-pooling proxy.
	LeaderStrategyLease = consume.LeaderStrategyLease
)

// AssignmentStrategy is how the leader deals out the consumers.
type AssignmentStrategy = consume.AssignmentStrategy

const (
	// AssignRoundRobin deals the consumers, sorted by name, to the workers,
	// sorted by id, in turns. Who has what depends on who is there only.
	AssignRoundRobin = consume.AssignRoundRobin
	// AssignSticky deals as evenly, and leaves as many consumers as it can
	// with the workers that run them already.
	AssignSticky = consume.AssignSticky
)

// GapPolicy is what happens to positions whose transaction stays open.
type GapPolicy = consume.GapPolicy

const (
	// GapSkipStale goes on past a transaction that stays open longer than
	// StaleGapThreshold, and delivers its events late if it commits after all.
	GapSkipStale = consume.GapSkipStale
	// GapWait waits for every transaction, however long: strict global order.
	GapWait = consume.GapWait
)

// FailurePolicy is what happens when a consumer has failed
// MaxConsecutiveFailures times in a row.
type FailurePolicy = consume.FailurePolicy

const (
	// FailStop ends the worker: Start returns ErrConsecutiveFailures.
	FailStop = consume.FailStop
	// FailPause pauses the consumer, wherever it is assigned, until an operator
	// resumes it (package ops). The others go on.
	FailPause = consume.FailPause
	// FailDeadLetter puts the event that fails among the dead letters and goes
	// on. Later events of its aggregate, or of the consumer's own key, follow it
	// there, in order, until an operator has them retried or discarded (package ops).
	FailDeadLetter = consume.FailDeadLetter
)

// BatchFunc runs a batch: its handlers and its commit.
type BatchFunc = func(ctx context.Context, b observe.Batch) error

// HandleFunc is a call of a handler: with one event, or with several if it is a
// [consumer.BatchConsumer].
type HandleFunc = func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error

// Decoder returns an event as handlers are to get it, see [WithDecoder].
type Decoder = func(ctx context.Context, e store.PersistedEvent) (store.PersistedEvent, error)

// Config is what the options set, a field for each. [DefaultConfig] has the defaults; Validate and
// String are for programs that show or check their settings.
type Config = consume.Config

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return consume.DefaultConfig() }

// Option changes one setting of a worker.
type Option func(*Config)

// WithBatchSize sets the most events of a batch: 1 to 100,000, default 100. The first batch of
// a consumer holds at most 10. Batches of a slow handler hold fewer, so that a batch takes
// about a quarter of BatchTimeout.
func WithBatchSize(n int) Option { return func(c *Config) { c.BatchSize = n } }

// WithBatchPause sets a pause after each full batch, 0 to 1h, default 0. It limits the rate to
// BatchSize / BatchPause while a consumer catches up, for the sake of the database.
func WithBatchPause(d time.Duration) Option { return func(c *Config) { c.BatchPause = d } }

// WithBatchTimeout bounds a batch from the moment it owns its checkpoint to the end of its
// commit: 10ms to 24h, default 30s. A batch that takes longer is rolled back and counts as a
// failure. After half of the time no further event begins: the batch commits the handled
// events, and the others follow in the next batch. A [consumer.BatchConsumer] has its events
// in one call, and gets half as many the next time. No single event is blamed.
func WithBatchTimeout(d time.Duration) Option { return func(c *Config) { c.BatchTimeout = d } }

// WithMaxConsecutiveFailures sets after how many failures in a row of one consumer the
// FailurePolicy applies: 1 to 1,000,000, default 5. A failed batch of several events is
// narrowed down to the event that fails, which is then tried alone. Only failures in which an
// event was alone, or was named, count.
func WithMaxConsecutiveFailures(n int) Option {
	return func(c *Config) { c.MaxConsecutiveFailures = n }
}

// WithFailurePolicy sets what happens to a consumer, or to the event, that fails again and
// again. The default is FailStop.
func WithFailurePolicy(p FailurePolicy) Option { return func(c *Config) { c.FailurePolicy = p } }

// WithRetryLimit sets how long the database may fail until the worker ends with ErrOutage: 2 x
// HeartbeatInterval to 1 year. The default, 0, is for ever. Failures are heartbeats that do
// not arrive, and batches that fail through no fault of their handler. Until then the worker
// tries again, after pauses of up to 30 seconds. The time begins again when a step of the
// consumer succeeds.
func WithRetryLimit(d time.Duration) Option { return func(c *Config) { c.RetryLimit = d } }

// WithShutdownTimeout bounds how long a worker that stops waits for the batches in flight:
// 10ms to 24h. The default, 0, is as long as BatchTimeout allows. Batches that take longer are
// rolled back, and handled again where their consumer runs next. Start returns a few seconds
// later at the latest, see [ErrHandlerOverdue].
func WithShutdownTimeout(d time.Duration) Option { return func(c *Config) { c.ShutdownTimeout = d } }

// WithBatchMiddleware wraps every batch, for tracing. The middleware is called
// when the batch owns its checkpoint; next runs the handlers, with the context
// that it is given, and the commit, and must be called once. What next returns
// has happened, whatever the middleware returns. Of several, the first is the outermost.
func WithBatchMiddleware(m func(next BatchFunc) BatchFunc) Option {
	return func(c *Config) { c.BatchMiddleware = nested(c.BatchMiddleware, m) }
}

// nested puts middleware around another, either of which may be nil.
func nested[F any](outer, inner func(next F) F) func(next F) F {
	switch {
	case outer == nil:
		return inner
	case inner == nil:
		return outer
	}
	return func(next F) F { return outer(inner(next)) }
}

// WithHandleMiddleware wraps every call of a handler. The middleware sees the
// transaction and the events of the call, as the handler gets them. next runs the
// handler, with the context that it is given and on these events, and must be called
// once. Make that context from the one that the middleware has: [consumer.Info] answers
// from it. An error of the handler counts also if the middleware hides it. Any other error
// that the middleware returns, and a panic, counts as the handler's.
//
// Use it for what needs the events, such as links to the traces of their producers, and
// [WithBatchMiddleware] for what needs the outcome: only that knows whether the batch
// was committed. Of several, the first is the outermost.
func WithHandleMiddleware(m func(next HandleFunc) HandleFunc) Option {
	return func(c *Config) { c.HandleMiddleware = nested(c.HandleMiddleware, m) }
}

// WithDecoder sets what makes of each stored event the one that handlers get: it
// upcasts old versions, or decrypts. It is called for an event each time that this is
// delivered, within the batch's transaction and BatchTimeout, before any middleware of
// the handler. Several goroutines call it. [consumer.Info] answers from its context.
//
// An error, or a panic, is a failure of the consumer's handler at this event: it is
// tried again, and the FailurePolicy applies. The decoder may change the event's type,
// version, payload, metadata and time. It is an error if its position, its aggregate or one
// of its ids is another one. Types of aggregates, keys of partitions and dead letters
// go by the stored event.
func WithDecoder(d Decoder) Option { return func(c *Config) { c.Decoder = d } }

// WithPollInterval sets the first retry pause, and how often an idle worker re-reads its
// checkpoints: 1ms to 1h, default 1s. New events need no poll: the dispatcher brings them.
func WithPollInterval(d time.Duration) Option { return func(c *Config) { c.PollInterval = d } }

// WithMaxPollInterval sets where the doubling of PollInterval ends: PollInterval to 24h,
// default 30s.
func WithMaxPollInterval(d time.Duration) Option { return func(c *Config) { c.MaxPollInterval = d } }

// WithDispatcherStrategy sets how the worker learns of new events. The default is
// DispatcherStrategyPoll.
func WithDispatcherStrategy(s DispatcherStrategy) Option {
	return func(c *Config) { c.DispatcherStrategy = s }
}

// WithDispatcherInterval sets how often DispatcherStrategyPoll polls, and how often
// [Worker.WaitFor] and [Waiter] do: 1ms to 1h, default 200ms.
func WithDispatcherInterval(d time.Duration) Option {
	return func(c *Config) { c.DispatcherInterval = d }
}

// WithNotifyConnectionString sets where DispatcherStrategyNotify listens. The connection must
// lead straight to PostgreSQL: LISTEN does not survive a transaction-pooling proxy.
func WithNotifyConnectionString(s string) Option {
	return func(c *Config) { c.NotifyConnectionString = s }
}

// WithNotifyChannel sets the channel to listen on. The event store notifies it. The default is
// "worker_events".
func WithNotifyChannel(channel string) Option { return func(c *Config) { c.NotifyChannel = channel } }

// WithHeartbeatInterval sets how often the worker reports that it is alive: 10ms to 1h,
// default 5s.
func WithHeartbeatInterval(d time.Duration) Option {
	return func(c *Config) { c.HeartbeatInterval = d }
}

// WithHeartbeatTimeout sets after how long without a heartbeat the other workers take this one
// for dead: 2 x HeartbeatInterval to 24h, default 30s.
func WithHeartbeatTimeout(d time.Duration) Option { return func(c *Config) { c.HeartbeatTimeout = d } }

// WithRebalanceInterval sets how often the leader checks the assignments: 10ms to 1h, default
// 5s. It notices arrivals and departures sooner.
func WithRebalanceInterval(d time.Duration) Option {
	return func(c *Config) { c.RebalanceInterval = d }
}

// WithLeaderStrategy sets how the workers elect a leader. All workers of one set of tables
// must use the same. The default is LeaderStrategyAdvisory.
func WithLeaderStrategy(s LeaderStrategy) Option { return func(c *Config) { c.LeaderStrategy = s } }

// WithHostname names the machine in the table of workers, in at most 200 bytes. The default is
// the name that the system has. Several workers may have one name: their IDs tell them apart.
func WithHostname(name string) Option { return func(c *Config) { c.Hostname = name } }

// WithAssignmentStrategy sets how the leader assigns the consumers. The leader's setting
// applies, so all workers of one set of tables should use the same. The default is
// AssignRoundRobin.
func WithAssignmentStrategy(s AssignmentStrategy) Option {
	return func(c *Config) { c.AssignmentStrategy = s }
}

// WithStaleGapThreshold sets how long an open transaction may hold back the events behind its
// positions (GapSkipStale): 10ms to 24h, default 30s.
func WithStaleGapThreshold(d time.Duration) Option {
	return func(c *Config) { c.StaleGapThreshold = d }
}

// WithStaleGapHarborLag sets how many positions consumers stay behind the head when they go
// past a transaction that stays open: 0 to 1,000,000, default 0.
func WithStaleGapHarborLag(n int) Option { return func(c *Config) { c.StaleGapHarborLag = n } }

// WithGapPolicy sets what happens to positions whose transaction stays open. The default is
// GapSkipStale.
func WithGapPolicy(p GapPolicy) Option { return func(c *Config) { c.GapPolicy = p } }

// WithMaxOpenRanges bounds how many ranges of positions in doubt a consumer may have passed: 1
// to 1,000,000, default 10,000. At the bound the consumer waits.
func WithMaxOpenRanges(n int) Option { return func(c *Config) { c.MaxOpenRanges = n } }

// WithGapSkipRetention sets how long the audit keeps rows of positions that are void or were
// delivered late: 100ms to 10 years. The default, 0, is for ever. Rows of open positions are
// always kept.
func WithGapSkipRetention(d time.Duration) Option {
	return func(c *Config) { c.GapSkipRetention = d }
}

// WithObserver adds observers of what happens. They are called in the order in
// which they were added.
func WithObserver(o ...observe.Observer) Option {
	return func(c *Config) { c.Observers = append(c.Observers, o...) }
}

// WithSlog logs what happens, as [observe.Log] does. By default warnings and errors go to
// [slog.Default].
func WithSlog(l *slog.Logger) Option { return withLog(observe.Log(l)) }

// WithLogger logs what happens to a [store.Logger]; with nil nothing is logged. A logger
// of [store.NewSlogLogger] is taken as WithSlog takes its *slog.Logger.
func WithLogger(l store.Logger) Option { return withLog(observe.LogTo(l)) }

func withLog(o observe.Observer) Option {
	return func(c *Config) { c.Loggers = append(c.Loggers, o) }
}

// WithWorkerNodesTable names the table of registered workers. The default is "worker_nodes".
func WithWorkerNodesTable(name string) Option { return func(c *Config) { c.WorkerNodesTable = name } }

// WithConsumerAssignmentsTable names the table of assignments. The default is
// "consumer_assignments".
func WithConsumerAssignmentsTable(name string) Option {
	return func(c *Config) { c.ConsumerAssignmentsTable = name }
}

// WithConsumerCheckpointsTable names the table of checkpoints. The default is
// "consumer_checkpoints". The names of the tables "..._token", "..._settled", "..._changes"
// and "..._schema" derive from it, and, in place of "_checkpoints", "..._dead_letters" and
// "..._operations".
func WithConsumerCheckpointsTable(name string) Option {
	return func(c *Config) { c.ConsumerCheckpointsTable = name }
}

// WithConsumerGapSkipsTable names the table that audits skipped positions. The default is
// "consumer_gap_skips".
func WithConsumerGapSkipsTable(name string) Option {
	return func(c *Config) { c.ConsumerGapSkipsTable = name }
}

// WithLeaderElectionTable names the table of LeaderStrategyLease. The default is
// "worker_leader_election".
func WithLeaderElectionTable(name string) Option {
	return func(c *Config) { c.LeaderElectionTable = name }
}
