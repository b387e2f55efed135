package worker

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// DispatcherStrategy is how a worker learns of new events.
type DispatcherStrategy string

const (
	// DispatcherStrategyPoll looks every DispatcherInterval. It works
	// everywhere, also behind a transaction-pooling proxy.
	DispatcherStrategyPoll DispatcherStrategy = "poll"
	// DispatcherStrategyNotify listens on a direct connection of its own and
	// looks every second besides, in case a notification was lost.
	DispatcherStrategyNotify DispatcherStrategy = "notify"
)

// dispatcherStrategies are all of them. The first is the default.
var dispatcherStrategies = []DispatcherStrategy{DispatcherStrategyPoll, DispatcherStrategyNotify}

// LeaderStrategy is how workers agree on who assigns consumers.
type LeaderStrategy string

const (
	// LeaderStrategyAdvisory holds a session advisory lock. A dead leader is
	// replaced as soon as the server notices that its connection is gone.
	LeaderStrategyAdvisory LeaderStrategy = "advisory"
	// LeaderStrategyLease holds a row for a limited time. It works behind a
	// transaction-pooling proxy.
	LeaderStrategyLease LeaderStrategy = "lease"
)

// leaderStrategies are all of them. The first is the default.
var leaderStrategies = []LeaderStrategy{LeaderStrategyAdvisory, LeaderStrategyLease}

// AssignmentStrategy is how the leader deals out the consumers.
type AssignmentStrategy string

const (
	// AssignRoundRobin deals the consumers, sorted by name, to the workers,
	// sorted by id, in turns. Who has what depends on who is there only.
	AssignRoundRobin AssignmentStrategy = "round-robin"
	// AssignSticky deals as evenly, and leaves as many consumers as it can
	// with the workers that run them already.
	AssignSticky AssignmentStrategy = "sticky"
)

// assignmentStrategies are all of them. The first is the default.
var assignmentStrategies = []AssignmentStrategy{AssignRoundRobin, AssignSticky}

// GapPolicy is what happens to positions whose transaction stays open.
type GapPolicy string

const (
	// GapSkipStale goes on past a transaction that stays open longer than
	// StaleGapThreshold, and delivers its events late if it commits after all.
	GapSkipStale GapPolicy = "skip-stale"
	// GapWait waits for every transaction, however long: strict global order.
	GapWait GapPolicy = "wait"
)

// gapPolicies are all of them. The first is the default.
var gapPolicies = []GapPolicy{GapSkipStale, GapWait}

// FailurePolicy is what happens when a consumer has failed
// MaxConsecutiveFailures times in a row.
type FailurePolicy string

const (
	// FailStop ends the worker: Start returns ErrConsecutiveFailures.
	FailStop FailurePolicy = "stop"
	// FailPause pauses the consumer, wherever it is assigned, until an operator
	// resumes it (package ops). The others go on.
	FailPause FailurePolicy = "pause"
	// FailDeadLetter puts the event that fails among the dead letters and goes
	// on. Later events of its aggregate, or of the consumer's own key, follow it
	// there, in order, until an operator has them retried or discarded (package ops).
	FailDeadLetter FailurePolicy = "dead-letter"
)

// failurePolicies are all of them. The first is the default.
var failurePolicies = []FailurePolicy{FailStop, FailPause, FailDeadLetter}

// BatchFunc runs a batch: its handlers and its commit.
type BatchFunc func(ctx context.Context, b observe.Batch) error

// Config is what the options set. Every field has a default; Start refuses
// values out of range.
type Config struct {
	BatchSize              int           // events a batch at most, 1 to 100,000; default 100
	BatchPause             time.Duration // pause after a full batch, 0 to 1h; default 0
	BatchTimeout           time.Duration // for the handlers and the commit of a batch, 10ms to 24h; default 30s
	MaxConsecutiveFailures int           // failures in a row of one consumer until FailurePolicy applies, 1 to 1,000,000; default 5
	FailurePolicy          FailurePolicy // default FailStop
	RetryLimit             time.Duration // how long the database may fail until the worker ends, 2 x HeartbeatInterval to 1 year; default 0: for ever
	ShutdownTimeout        time.Duration // for the batches in hand when the worker stops, 10ms to 24h; default 0: as long as BatchTimeout lets them

	PollInterval    time.Duration // first pause of an idle worker between two looks at the checkpoints, 1ms to 1h; default 1s
	MaxPollInterval time.Duration // and the last, PollInterval to 24h; default 30s

	DispatcherStrategy     DispatcherStrategy // default DispatcherStrategyPoll
	DispatcherInterval     time.Duration      // between two looks for new events, 1ms to 1h; default 200ms
	NotifyConnectionString string             // direct connection for LISTEN; needed by DispatcherStrategyNotify
	NotifyChannel          string             // the channel that the store notifies; default "worker_events"

	HeartbeatInterval time.Duration  // 10ms to 1h; default 5s
	HeartbeatTimeout  time.Duration  // silence after which this worker is dead, 2 x HeartbeatInterval to 24h; default 30s
	RebalanceInterval time.Duration  // between two checks of the assignments, 10ms to 1h; default 5s
	LeaderStrategy    LeaderStrategy // default LeaderStrategyAdvisory
	Hostname          string         // of the machine in the table of workers, at most 200 bytes; default "": as the system says

	AssignmentStrategy AssignmentStrategy // default AssignRoundRobin

	StaleGapThreshold time.Duration // age at which an open transaction no longer holds back others, 10ms to 24h; default 30s
	StaleGapHarborLag int           // positions to stay behind the head when going past it, 0 to 1,000,000; default 0
	GapPolicy         GapPolicy     // default GapSkipStale
	MaxOpenRanges     int           // ranges of positions in doubt a consumer may have passed, 1 to 1,000,000; default 10,000

	GapSkipRetention time.Duration // how long closed rows of the audit are kept, 100ms to 10 years; default 0: for ever

	Observers []observe.Observer // default: none
	loggers   []observe.Observer // none: warnings and errors go to slog.Default

	Decoder          Decoder                          // of every event that is delivered; default none
	BatchMiddleware  func(next BatchFunc) BatchFunc   // around every batch; default none
	HandleMiddleware func(next HandleFunc) HandleFunc // around every call of a handler; default none

	WorkerNodesTable         string // default "worker_nodes"
	ConsumerAssignmentsTable string // default "consumer_assignments"
	ConsumerCheckpointsTable string // default "consumer_checkpoints"
	ConsumerGapSkipsTable    string // default "consumer_gap_skips"
	LeaderElectionTable      string // default "worker_leader_election"
}

// Option changes one setting of a worker.
type Option func(*Config)

// WithBatchSize sets how many events a batch holds at most. The default is 100. Batches of
// a slow handler hold fewer: so many that they take about a quarter of BatchTimeout. The
// first batch of a consumer holds at most 10.
func WithBatchSize(n int) Option { return func(c *Config) { c.BatchSize = n } }

// WithBatchPause sets a pause after each full batch, to be gentle on the
// database while catching up. It caps the rate at BatchSize / BatchPause.
func WithBatchPause(d time.Duration) Option { return func(c *Config) { c.BatchPause = d } }

// WithBatchTimeout bounds a batch from the moment it owns its checkpoint to
// the end of its commit. A batch that takes longer is rolled back and counts
// as a failure. After half of the time no further event begins: the batch commits those that
// are handled, and the others follow in the next one. A [consumer.BatchConsumer], which has its
// events in one call, gets half as many the next time; no event is to blame.
func WithBatchTimeout(d time.Duration) Option { return func(c *Config) { c.BatchTimeout = d } }

// WithMaxConsecutiveFailures sets how many failures in a row of one consumer
// it takes for the FailurePolicy to apply. A batch of several events that fails
// is narrowed down to the event that does, which is then tried alone. Only
// failures of that event count: those in which it was alone, or was named.
func WithMaxConsecutiveFailures(n int) Option {
	return func(c *Config) { c.MaxConsecutiveFailures = n }
}

// WithFailurePolicy sets what happens to a consumer, or to the event, that
// fails again and again.
func WithFailurePolicy(p FailurePolicy) Option { return func(c *Config) { c.FailurePolicy = p } }

// WithRetryLimit sets after what time without a working database the worker
// ends with ErrOutage: heartbeats that do not arrive, or a consumer whose
// batches fail through no fault of its handler. Meanwhile it tries again, with
// pauses of up to 30 seconds. By default it does so for ever. The time begins
// again whenever a step of the consumer succeeds.
func WithRetryLimit(d time.Duration) Option { return func(c *Config) { c.RetryLimit = d } }

// WithShutdownTimeout bounds how long a worker that stops waits for the
// batches in hand. Those that take longer are rolled back, and handled again
// wherever their consumer runs next. Start returns a few seconds later at the
// latest, see [ErrHandlerOverdue].
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

// HandleFunc is a call of a handler: with one event, or with several if it is a
// [consumer.BatchConsumer].
type HandleFunc func(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error

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

// WithPollInterval sets after how long an idle worker looks whether somebody
// else has moved one of its consumers, and the first pause after a failure.
// New events need no poll: they come with the dispatcher.
func WithPollInterval(d time.Duration) Option { return func(c *Config) { c.PollInterval = d } }

// WithMaxPollInterval sets where the doubling of PollInterval ends.
func WithMaxPollInterval(d time.Duration) Option { return func(c *Config) { c.MaxPollInterval = d } }

// WithDispatcherStrategy sets how the worker learns of new events.
func WithDispatcherStrategy(s DispatcherStrategy) Option {
	return func(c *Config) { c.DispatcherStrategy = s }
}

// WithDispatcherInterval sets how often DispatcherStrategyPoll looks, and how often those look
// who wait for a consumer ([Worker.WaitFor], [Waiter]).
func WithDispatcherInterval(d time.Duration) Option {
	return func(c *Config) { c.DispatcherInterval = d }
}

// WithNotifyConnectionString sets where DispatcherStrategyNotify listens. It
// must lead straight to PostgreSQL: LISTEN does not survive a
// transaction-pooling proxy.
func WithNotifyConnectionString(s string) Option {
	return func(c *Config) { c.NotifyConnectionString = s }
}

// WithNotifyChannel sets the channel to listen on, the one that the store
// notifies.
func WithNotifyChannel(channel string) Option { return func(c *Config) { c.NotifyChannel = channel } }

// WithHeartbeatInterval sets how often the worker says that it is alive.
func WithHeartbeatInterval(d time.Duration) Option {
	return func(c *Config) { c.HeartbeatInterval = d }
}

// WithHeartbeatTimeout sets after what silence the others take this worker for dead.
func WithHeartbeatTimeout(d time.Duration) Option { return func(c *Config) { c.HeartbeatTimeout = d } }

// WithRebalanceInterval sets how often the leader checks the assignments by
// itself; it notices arrivals and departures sooner.
func WithRebalanceInterval(d time.Duration) Option {
	return func(c *Config) { c.RebalanceInterval = d }
}

// WithLeaderStrategy sets how the workers agree on a leader. All workers of
// one set of tables must use the same.
func WithLeaderStrategy(s LeaderStrategy) Option { return func(c *Config) { c.LeaderStrategy = s } }

// WithHostname names the machine in the table of workers. By default it is what the system says.
// Several workers may have one name: their IDs tell them apart.
func WithHostname(name string) Option { return func(c *Config) { c.Hostname = name } }

// WithAssignmentStrategy sets how the leader deals out the consumers. The one
// of whoever leads counts, so all workers of one set of tables should use the
// same.
func WithAssignmentStrategy(s AssignmentStrategy) Option {
	return func(c *Config) { c.AssignmentStrategy = s }
}

// WithStaleGapThreshold sets how long an open transaction may hold back the
// events behind its positions (GapSkipStale).
func WithStaleGapThreshold(d time.Duration) Option {
	return func(c *Config) { c.StaleGapThreshold = d }
}

// WithStaleGapHarborLag sets how many positions to stay behind the head when
// going past a transaction that stays open.
func WithStaleGapHarborLag(n int) Option { return func(c *Config) { c.StaleGapHarborLag = n } }

// WithGapPolicy sets what happens to positions whose transaction stays open.
func WithGapPolicy(p GapPolicy) Option { return func(c *Config) { c.GapPolicy = p } }

// WithMaxOpenRanges bounds how many ranges of positions in doubt a consumer
// may have passed; at the bound it waits.
func WithMaxOpenRanges(n int) Option { return func(c *Config) { c.MaxOpenRanges = n } }

// WithGapSkipRetention sets how long the audit keeps rows of positions that
// are void or were delivered late. Open ones are always kept.
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
	return func(c *Config) { c.loggers = append(c.loggers, o) }
}

// WithWorkerNodesTable names the table of registered workers.
func WithWorkerNodesTable(name string) Option { return func(c *Config) { c.WorkerNodesTable = name } }

// WithConsumerAssignmentsTable names the table of assignments.
func WithConsumerAssignmentsTable(name string) Option {
	return func(c *Config) { c.ConsumerAssignmentsTable = name }
}

// WithConsumerCheckpointsTable names the table of checkpoints. From it derive
// the names of the tables "..._token", "..._settled", "..._changes" and
// "..._schema", and, in place of "_checkpoints", "..._dead_letters" and
// "..._operations".
func WithConsumerCheckpointsTable(name string) Option {
	return func(c *Config) { c.ConsumerCheckpointsTable = name }
}

// WithConsumerGapSkipsTable names the table that audits skipped positions.
func WithConsumerGapSkipsTable(name string) Option {
	return func(c *Config) { c.ConsumerGapSkipsTable = name }
}

// WithLeaderElectionTable names the table of LeaderStrategyLease.
func WithLeaderElectionTable(name string) Option {
	return func(c *Config) { c.LeaderElectionTable = name }
}
