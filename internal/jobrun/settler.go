package jobrun

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/watchdog"
)

const (
	// mostStored bounds how many outcomes a statement stores.
	mostStored = 2000
	// mostBytes bounds the bytes of the outcomes that a statement stores. The first outcome of a
	// statement may exceed the bound.
	mostBytes = 4 << 20
	// fullBatch is how many outcomes are stored at once, without a pause to gather more.
	fullBatch = 200
	// mostUnsettled is how many outcomes may wait before the settler is full.
	mostUnsettled = 10_000
	// mostUnsettledBytes is how many bytes of outcomes may wait before the settler is full.
	mostUnsettledBytes = 64 << 20
	// LockedOften is how often a row must be found locked before it counts as stuck. That is about
	// two seconds after the first time.
	LockedOften = 10
	// finishLimit is how long a stop waits for outcomes to be stored.
	finishLimit = 15 * time.Second
)

// Ending is the outcome of a run that is not stored yet. The ending of a package embeds it.
type Ending struct {
	Concluded bool  // the outcome is stored, or the claim is lost
	Why       error // why the last statement set it aside; nil: it did not
	Locked    int   // how often the row was locked when the outcome was to be stored
	Refused   int   // how often the database has refused to store the outcome

	bytes int
	until time.Time // when to retry
}

func (e *Ending) base() *Ending { return e }

// Settler stores the outcomes of runs. The outcomes that gather while a statement runs are stored
// by the next statement. While the database does not answer, the settler keeps the outcomes and
// retries. An outcome whose row is locked or refused is set aside and retried, and the others are
// stored. E is a pointer to a struct that embeds Ending.
type Settler[E interface{ base() *Ending }] struct {
	// Store stores a batch. It may be called again with the same outcomes. It sets Concluded of
	// each outcome that is stored or lost, and Why of each outcome that the database refuses. The
	// rows of the others are locked, if Store returns nil.
	Store func(ctx context.Context, batch []E) error
	// Report is called after each statement. Outcomes of locked rows have LockedRow as their Why.
	Report func(batch []E, err error)
	// Room is called when the settler may be no longer full. It may be nil.
	Room func()

	LockedRow error               // why the outcome of a locked row is set aside
	Gather    time.Duration       // bounds the pause in which outcomes gather for the next statement
	Turn      *watchdog.Iteration // a statement with its Report

	woken   chan struct{}
	changed chan struct{} // signalled after each statement

	storedAt time.Time     // the end of the last statement
	took     time.Duration // duration of the last statement
	pace     batch.Pace

	mu      sync.Mutex
	coming  int // their runs have ended, and Add gets them next
	waiting []E
	aside   []E // locked or refused, to be retried
	storing int // outcomes in the current statement
	bytes   int // of all outcomes that are not stored
}

// NewSettler returns a Settler whose fields are to be set.
func NewSettler[E interface{ base() *Ending }]() *Settler[E] {
	return &Settler[E]{woken: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// Expect records an outcome that Add gets next. Call it before the run enters the phase Settling:
// a stop waits for each run until then, and for its outcome from then on.
func (s *Settler[E]) Expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming++
}

// Add adds an expected outcome. bytes is about how many bytes a statement moves to store it.
func (s *Settler[E]) Add(e E, bytes int) {
	e.base().bytes = bytes
	s.mu.Lock()
	s.coming--
	s.waiting = append(s.waiting, e)
	s.bytes += bytes
	s.mu.Unlock()
	Wake(s.woken)
}

// unsettled returns how many outcomes are not stored.
func (s *Settler[E]) unsettled() int {
	return s.coming + len(s.waiting) + len(s.aside) + s.storing
}

// isFull reports whether too many outcomes wait.
func (s *Settler[E]) isFull() bool {
	return s.unsettled() >= mostUnsettled || s.bytes >= mostUnsettledBytes
}

// Unsettled returns how many outcomes are not stored.
func (s *Settler[E]) Unsettled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsettled()
}

// Full reports whether too many outcomes wait. Then the worker claims no jobs.
func (s *Settler[E]) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isFull()
}

// Stuck returns how many outcomes are set aside because they were refused, or because their rows
// stay locked, and one of them.
func (s *Settler[E]) Stuck() (first E, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.aside {
		if b := e.base(); b.Refused > 0 || b.Locked >= LockedOften {
			if n++; n == 1 {
				first = e
			}
		}
	}
	return first, n
}

// Run stores outcomes until ctx ends. limit bounds a statement.
func (s *Settler[E]) Run(ctx context.Context, limit time.Duration) {
	for failures := 0; s.gather(ctx); {
		batch, next := s.take(time.Now())
		if len(batch) == 0 {
			select {
			case <-s.woken:
			case <-next:
			case <-ctx.Done():
				return
			}
			continue
		}
		if s.store(ctx, batch, limit) == nil {
			failures = 0
			continue
		}
		failures++
		if !backoff.Sleep(ctx, backoff.Session(failures)) {
			return
		}
	}
}

// store stores a batch and reports the result.
func (s *Settler[E]) store(ctx context.Context, batch []E, limit time.Duration) error {
	s.Turn.Begin()
	defer s.Turn.End()
	begin := time.Now()
	err := s.Store(ctx, batch)
	s.storedAt = time.Now()
	s.took = s.storedAt.Sub(begin)
	s.pace.Took(len(batch), s.took, limit, err)
	s.finishBatch(batch, err)
	if ctx.Err() == nil {
		s.Report(batch, err)
	}
	return err
}

// gather pauses if the last statement was a moment ago and few outcomes have gathered since.
// Without the pause, a statement for every few outcomes would keep the server busy. gather reports
// false when ctx ends.
func (s *Settler[E]) gather(ctx context.Context) bool {
	for {
		rest := time.Until(s.storedAt.Add(min(s.took, s.Gather)))
		if n := s.Unsettled(); n == 0 || n >= fullBatch || rest <= 0 {
			return true
		}
		if !backoff.Sleep(ctx, min(rest, time.Millisecond)) {
			return false
		}
	}
}

// take returns the outcomes to store now, as many as a statement may store. It takes waiting
// outcomes first, then outcomes set aside whose retry is due. If there are none now, next fires
// when the next retry is due.
func (s *Settler[E]) take(now time.Time) (batch []E, next <-chan time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most, bytes := s.pace.Most(mostStored), 0
	fits := func(e E) bool {
		if bytes += e.base().bytes; len(batch) > 0 && (bytes > mostBytes || len(batch) == most) {
			return false
		}
		e.base().Why = nil
		batch = append(batch, e)
		return true
	}
	n := 0
	for n < len(s.waiting) && fits(s.waiting[n]) {
		n++
	}
	s.waiting = s.waiting[n:]
	var first time.Time
	s.aside = slices.DeleteFunc(s.aside, func(e E) bool {
		until := e.base().until
		if !now.Before(until) && fits(e) {
			return true
		}
		if first.IsZero() || until.Before(first) {
			first = until
		}
		return false
	})
	s.storing += len(batch)
	if len(batch) == 0 && !first.IsZero() {
		next = time.After(first.Sub(now))
	}
	return batch, next
}

// finishBatch sorts a batch after its statements. Concluded outcomes are done. Refused outcomes,
// and outcomes of locked rows, are set aside. After an error, the rest waits behind newer outcomes,
// so that the next statement has others.
func (s *Settler[E]) finishBatch(tried []E, err error) {
	now := time.Now()
	s.mu.Lock()
	waited := s.isFull()
	s.storing -= len(tried)
	for _, e := range tried {
		switch b := e.base(); {
		case b.Concluded:
			s.bytes -= b.bytes
			continue
		case b.Why != nil:
			b.Refused++
			b.until = now.Add(batch.Pause(b.Refused))
		case err != nil:
			s.waiting = append(s.waiting, e)
			continue
		default:
			b.Why = s.LockedRow
			b.Locked++
			b.until = now.Add(LockedPause(b.Locked))
		}
		s.aside = append(s.aside, e)
	}
	s.mu.Unlock()
	Wake(s.changed)
	if waited && s.Room != nil {
		s.Room()
	}
}

// LockedPause returns the pause before a row is tried again that was locked this often.
func LockedPause(often int) time.Duration {
	return min(time.Second, time.Millisecond<<min(often, LockedOften))
}

// Finish waits until every outcome is stored, for 15 seconds or until ctx ends. It returns how many
// are not stored.
func (s *Settler[E]) Finish(ctx context.Context) (left int) {
	late := time.After(finishLimit)
	for {
		if left = s.Unsettled(); left == 0 {
			return 0
		}
		select {
		case <-s.changed:
		case <-late:
			return left
		case <-ctx.Done():
			return left
		}
	}
}
