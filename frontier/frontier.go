package frontier

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/store"
)

// Value is the published state of the log. It is immutable.
type Value struct {
	// Token names the incarnation of the server in which the other fields were found. After a
	// crash, a promotion or a restore, positions may be issued again. The server then has
	// another token, and the Value is no longer valid. Token is empty before the first
	// publication.
	Token string
	// Settled is the low-water mark: every position up to Settled is visible to new snapshots,
	// or void.
	Settled int64
	// Safe is the high-water mark: consumers may advance up to Safe. Take a position up to
	// Safe that is missing in a snapshot taken after the Value. It is in doubt if Doubts cover
	// it, and void otherwise.
	Safe int64
	// Doubts are the ranges in doubt, ascending and disjoint. Do not modify them.
	Doubts []store.Range

	recent *recent // see Since
}

// Config holds the dependencies and settings of a Frontier.
type Config struct {
	DB             *sql.DB
	Log            store.Log   // preferably a store.SequenceNamer
	Token, Settled ident.Table // see package migrations
	Changes        ident.Table // see package changes

	StaleAfter time.Duration // a transaction that holds a fence open for longer is stale
	// Strict keeps the global order: the frontier waits for every transaction, however long.
	// Otherwise it passes a stale transaction, and publishes the positions that the transaction
	// may own as doubts.
	Strict bool
	// HarborLag is the number of positions that Safe stays behind the head while doubts exist.
	HarborLag int64
	Interval  time.Duration // between two reads of an idle log
	OnFailure func(error)   // called after each failed attempt of Run; may be nil
	OnBack    func()        // called when Run works again after a failure; may be nil
	OnStale   func(Holder)  // called once for each transaction that becomes stale; may be nil
	OnFree    func(Holder)  // called once for each stale transaction that ended or no longer blocks; may be nil
	OnChange  func()        // called when the counter in Changes has moved; may be nil
}

// Frontier keeps a Value up to date while Run runs.
type Frontier struct {
	cfg Config

	value     atomic.Pointer[Value]
	head      atomic.Int64 // -1: not read yet
	blocked   atomic.Pointer[[]Holder]
	failure   atomic.Pointer[error] // nil: Run works
	wake      chan struct{}
	changes   atomic.Int64      // the latest value of the counter in Changes
	follow    atomic.Bool       // a consumer called Follow since the latest statement
	reopen    atomic.Bool       // Reopen was called since the session began
	reported  map[string]Holder // stale transactions passed to OnStale, by virtual transaction; owned by the goroutine that steps
	turned    watchdog.Moment   // when Run last began a statement or an attempt
	plans     pgdriver.Plans    // prepared statements, kept across sessions
	limit     limit             // used by one goroutine at a time
	heartbeat heartbeat
	stepped   *session // of Step; nil: to be opened

	mu      sync.Mutex
	changed chan struct{} // closed at the next publication
	back    chan struct{} // closed when the database works again after a failure
}

// New returns a Frontier that does not run yet.
func New(cfg Config) *Frontier {
	f := &Frontier{cfg: cfg, wake: make(chan struct{}, 1), changed: make(chan struct{}), back: make(chan struct{}), reported: map[string]Holder{}}
	f.value.Store(&Value{})
	f.head.Store(-1)
	f.blocked.Store(&[]Holder{})
	return f
}

// Value returns the latest published Value. Before the first publication it returns the zero
// Value. It never returns nil.
func (f *Frontier) Value() *Value { return f.value.Load() }

// Head returns the highest visible position that the latest read of the log showed. It reports
// whether the log has been read yet.
func (f *Frontier) Head() (head int64, seen bool) {
	head = f.head.Load()
	return max(head, 0), head >= 0
}

// Blocked returns the transactions that hold the frontier back or keep positions in doubt. The
// list is from the latest scan of the locks.
func (f *Frontier) Blocked() []Holder { return *f.blocked.Load() }

// Err returns the error of the latest attempt while Run cannot read the log. It returns nil
// while Run works. The error comes from the connection or the server, or is a [SetupError].
func (f *Frontier) Err() error {
	if err := f.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// LastRead returns when the latest statement of Run that read the log or the locks began, or the zero
// time.
func (f *Frontier) LastRead() time.Time {
	f.heartbeat.mu.Lock()
	defer f.heartbeat.mu.Unlock()
	return f.heartbeat.until
}

// Turned returns when Run last began a statement or an attempt after a failure. Every
// statement has a time limit, so a Run whose time is minutes old hangs. Turned returns the
// zero time before Run.
func (f *Frontier) Turned() time.Time { return f.turned.Get() }

// Changed returns a channel that is closed at the next publication. To miss no change, take
// the channel, read Value, then wait for the channel.
func (f *Frontier) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Back returns a channel that is closed when the frontier next reads the log after a failure.
// Callers that failed may then retry at once.
func (f *Frontier) Back() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.back
}

// Wake makes the frontier read now. Wake never blocks, and wakeups coalesce.
func (f *Frontier) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Reopen makes Run continue on another connection, at most once a second. Callers use Reopen
// when they find another server behind their connections.
func (f *Frontier) Reopen() {
	f.reopen.Store(true)
	f.Wake()
}

// Follow asks for the events after Safe, for a consumer that has reached Safe. The frontier
// reads these events before it publishes how far they are safe, and Value.Since returns them.
// After 200 events, a consumer must call Follow again.
func (f *Frontier) Follow() { f.follow.Store(true) }

// notifyChange calls OnChange if the counter has moved.
func (f *Frontier) notifyChange(count int64) {
	if f.changes.Swap(count) != count && f.cfg.OnChange != nil {
		f.cfg.OnChange()
	}
}

func (f *Frontier) announceBack() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.back)
	f.back = make(chan struct{})
}

func (f *Frontier) publish(v *Value) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.value.Store(v)
	close(f.changed)
	f.changed = make(chan struct{})
}

// Run keeps the Value up to date until ctx ends, then returns nil. It pins one connection of
// the pool. When the connection or the database fails, Run forgets everything but the
// published Value and retries with backoff. The published Value stays valid under its token.
// Run returns an error only if the Config is invalid.
func (f *Frontier) Run(ctx context.Context) error {
	if err := f.cfg.validate(); err != nil {
		return err
	}
	for failures := 0; ; {
		f.turned.Set(time.Now())
		err := f.live(ctx, func() {
			if failures > 0 {
				f.failure.Store(nil)
				f.announceBack()
				if f.cfg.OnBack != nil {
					f.cfg.OnBack()
				}
			}
			failures = 0
		})
		if ctx.Err() != nil {
			return nil
		}
		failures++
		f.failure.Store(&err)
		if f.cfg.OnFailure != nil {
			f.cfg.OnFailure(err)
		}
		if !backoff.Sleep(ctx, backoff.Session(failures)) {
			return nil
		}
	}
}

// reopenEvery is the minimum age of a session that Reopen ends.
const reopenEvery = time.Second

var errFailover = errors.New("frontier: the pool's connections lead to another server than this session, which is closed: do several servers answer the connection string?")

// live runs one session until the session fails or ctx ends. It calls healthy after each step
// of a session that has read the log.
func (f *Frontier) live(ctx context.Context, healthy func()) error {
	s, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	defer f.heartbeat.stop()
	for s.wait(ctx) {
		f.turned.Set(time.Now())
		if f.reopen.Swap(false) && time.Since(s.opened) > reopenEvery {
			s.failed = true
			return errFailover
		}
		next, began := s.machine.next(s.now()).do, time.Now()
		if err := s.step(ctx); err != nil {
			return err
		}
		if next == readTail || next == readHead || next == scanLocks {
			f.heartbeat.beat(began, s.machine.token)
		}
		if s.hasRead {
			healthy()
		}
	}
	return ctx.Err()
}

// Step replaces Run in a test: it executes the next statement, even if the statement is not due,
// after a wakeup if Wake was called. The first Step only opens a session, and so does the first
// Step after an error. Close ends the session. Do not call it beside Run.
func (f *Frontier) Step(ctx context.Context) error {
	if f.stepped == nil {
		s, err := f.open(ctx)
		f.stepped = s
		return err
	}
	select {
	case <-f.wake:
		f.stepped.woken()
	default:
	}
	err := f.stepped.step(ctx)
	if err != nil {
		f.Close()
	}
	return err
}

// Close ends the session of Step, if there is one. It does not end Run.
func (f *Frontier) Close() {
	if f.stepped != nil {
		f.stepped.close()
		f.stepped = nil
	}
}

func (c Config) validate() error {
	switch {
	case c.DB == nil:
		return errors.New("frontier: Config.DB is nil: set it to a *sql.DB")
	case c.Log == nil:
		return errors.New("frontier: Config.Log is nil: set it to the event store")
	case c.Token.Name == "" || c.Settled.Name == "" || c.Changes.Name == "":
		return errors.New("frontier: Config.Token, Config.Settled and Config.Changes must name tables")
	case c.Interval <= 0 || c.StaleAfter <= 0:
		return errors.New("frontier: Config.Interval and Config.StaleAfter must be above 0")
	case c.HarborLag < 0:
		return errors.New("frontier: Config.HarborLag must not be below 0")
	}
	return nil
}
