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
	"github.com/pgfrontier/worker/internal/turn"
	"github.com/pgfrontier/worker/store"
)

// Policy is what happens to positions whose transaction stays open.
type Policy int

const (
	// SkipStale goes on past a transaction that has held a fence open for
	// StaleAfter. Positions that it may own are published as doubts.
	SkipStale Policy = iota
	// Wait waits for every transaction, however long: strict global order.
	Wait
)

// Value is what is known about the log. It is immutable.
type Value struct {
	// Token names the incarnation of the server in which the rest was found.
	// After a crash, a promotion or a restore, positions may be issued again:
	// there is another token then, and the Value counts no longer. Empty
	// before the first publication.
	Token string
	// Settled is the low-water mark: every position up to it is visible to new
	// snapshots, or void.
	Settled int64
	// Safe is the high-water mark: consumers may advance up to it. What is
	// missing up to it, in a snapshot taken after the Value, is in doubt if a
	// doubt covers it, and void otherwise.
	Safe int64
	// Doubts are ascending and disjoint. Do not modify.
	Doubts []store.Range

	recent *recent // see Since
}

// Config is what a Frontier needs.
type Config struct {
	DB             *sql.DB
	Log            store.Log   // preferably a store.SequenceNamer
	Token, Settled ident.Table // see package migrations
	Changes        ident.Table // likewise, see package changes

	Policy     Policy
	StaleAfter time.Duration // after it a transaction that holds a fence open is stale
	// HarborLag is how many positions Safe stays behind the head while there
	// are doubts.
	HarborLag int64
	Interval  time.Duration // between two looks while nothing happens
	OnFailure func(error)   // called for each failed try of Run; may be nil
	OnBack    func()        // called when a try of Run works after failed ones; may be nil
	OnStale   func(Holder)  // called once for each transaction that becomes stale; may be nil
	OnFree    func(Holder)  // called once for each of these that has ended, or holds nothing back any more; may be nil
	OnChange  func()        // called when the counter of Changes has moved; may be nil
}

// Frontier keeps a Value up to date while it runs.
type Frontier struct {
	cfg Config

	value   atomic.Pointer[Value]
	head    atomic.Int64 // -1: no look has shown it yet
	blocked atomic.Pointer[[]Holder]
	trouble atomic.Pointer[error] // nil: there is none
	wake    chan struct{}
	changes atomic.Int64      // the counter of changes, as last seen
	follow  atomic.Bool       // somebody called Follow since the latest statement
	reopen  atomic.Bool       // somebody called Reopen since the session began
	told    map[string]Holder // the stale ones that were reported, by virtual transaction; of the one who calls Step
	turned  turn.Moment       // when Run last began a turn
	plans   pgdriver.Plans    // that statements of sessions keep
	limit   limit             // of Open and Step, which one goroutine calls at a time
	pulse   pulse

	mu      sync.Mutex
	changed chan struct{} // closed at the next publication
	back    chan struct{} // closed when the database works again after a failure
}

// New returns a Frontier that is not running yet.
func New(cfg Config) *Frontier {
	f := &Frontier{cfg: cfg, wake: make(chan struct{}, 1), changed: make(chan struct{}), back: make(chan struct{}), told: map[string]Holder{}}
	f.value.Store(&Value{})
	f.head.Store(-1)
	f.blocked.Store(&[]Holder{})
	return f
}

// Value returns what was published last, the zero Value before that. It never
// returns nil.
func (f *Frontier) Value() *Value { return f.value.Load() }

// Head returns the highest visible position, as the latest look at the log
// showed it, and reports whether there was one.
func (f *Frontier) Head() (head int64, seen bool) {
	head = f.head.Load()
	return max(head, 0), head >= 0
}

// Blocked returns the transactions that hold the frontier back or keep
// positions in doubt, as the latest look at the locks showed them.
func (f *Frontier) Blocked() []Holder { return *f.blocked.Load() }

// Err returns why Run cannot read the log at the moment, nil if it can: the
// error of the connection or of the server, or a [SetupError].
func (f *Frontier) Err() error {
	if err := f.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Turned returns when Run last began a turn: a statement, or another try after a
// failure. Every statement has a bound, so a Run without a turn for minutes hangs. It
// is the zero time before Run.
func (f *Frontier) Turned() time.Time { return f.turned.Get() }

// Changed returns a channel that is closed at the next publication. To miss no
// change, take the channel, read Value, then wait for the channel.
func (f *Frontier) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Back returns a channel that is closed when the frontier next reads the log
// after a failure of its connection or of the server. Others may then try
// again at once.
func (f *Frontier) Back() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.back
}

// Wake makes the frontier read now. It never blocks; wakeups coalesce.
func (f *Frontier) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Reopen makes Run continue with another connection, at most once a second.
// Callers use it when they find another server behind their connections.
func (f *Frontier) Reopen() {
	f.reopen.Store(true)
	f.Wake()
}

// Follow says that a consumer has come to Safe and wants the events that come
// next: for a while, the frontier reads them before it publishes how far they
// are safe, and Value.Since has them.
func (f *Frontier) Follow() { f.follow.Store(true) }

// noticeChanges passes on that there is news beside the log.
func (f *Frontier) noticeChanges(count int64) {
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

// Run keeps the Value up to date until ctx ends, then returns nil. It pins one
// connection of the pool. When the connection or the database fails, Run
// forgets everything but the published Value, which stays true under its
// token, and tries again with backoff. It returns an error only if the Config
// cannot work.
func (f *Frontier) Run(ctx context.Context) error {
	if err := f.cfg.validate(); err != nil {
		return err
	}
	for failures := 0; ; {
		f.turned.Set(time.Now())
		err := f.live(ctx, func() {
			if failures > 0 {
				f.trouble.Store(nil)
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
		f.blocked.Store(&[]Holder{})
		f.trouble.Store(&err)
		if f.cfg.OnFailure != nil {
			f.cfg.OnFailure(err)
		}
		if !backoff.Sleep(ctx, backoff.Session(failures)) {
			return nil
		}
	}
}

// reopenEvery is how old a session must be for Reopen to end it.
const reopenEvery = time.Second

var errElsewhere = errors.New("frontier: the pool's connections lead to another server than this session, which is given up: do several servers answer the connection string?")

// live runs one session until it fails or ctx ends. It calls healthy once the
// session works.
func (f *Frontier) live(ctx context.Context, healthy func()) error {
	s, err := f.Open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	defer f.pulse.stop()
	for s.Wait(ctx) {
		f.turned.Set(time.Now())
		if f.reopen.Swap(false) && time.Since(s.opened) > reopenEvery {
			s.failed = true
			return errElsewhere
		}
		next, began := s.machine.next(s.now()).do, time.Now()
		if err := s.Step(ctx); err != nil {
			return err
		}
		if next == readTail || next == readHead || next == scanLocks {
			f.pulse.beat(began, s.machine.token)
		}
		if s.looked {
			healthy()
		}
	}
	return ctx.Err()
}

func (c Config) validate() error {
	switch {
	case c.DB == nil:
		return errors.New("frontier: Config.DB is nil, it takes a *sql.DB")
	case c.Log == nil:
		return errors.New("frontier: Config.Log is nil, it takes the event store")
	case c.Token.Name == "" || c.Settled.Name == "" || c.Changes.Name == "":
		return errors.New("frontier: Config.Token, Config.Settled and Config.Changes must name tables")
	case c.Interval <= 0 || c.StaleAfter <= 0:
		return errors.New("frontier: Config.Interval and Config.StaleAfter must be above 0")
	case c.HarborLag < 0:
		return errors.New("frontier: Config.HarborLag must not be below 0")
	}
	return nil
}
