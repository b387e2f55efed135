package consume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/store"
)

// ages has what the worker has read of the log beside the frontier: how far it is and how
// old its events are, also while the frontier hangs.
type ages struct {
	turn chan struct{} // one goroutine reads at a time

	mu    sync.Mutex
	token string // of the incarnation that head is of
	head  int64
	under string    // the incarnation that safe is of
	safe  int64     // the furthest
	since time.Time // when safe last went on, or had nowhere to go
}

func newAges() *ages { return &ages{turn: make(chan struct{}, 1)} }

// headOf returns the latest head of an incarnation, 0 if none is known.
func (a *ages) headOf(token string) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token != a.token {
		return 0
	}
	return a.head
}

func (a *ages) sawHead(token string, head int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.head = token, head
}

// still returns for how long safe has not moved while the head was above it. A new session of
// the frontier starts at what is settled: reaching the same place again is no move.
func (a *ages) still(token string, safe, head int64, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token != a.under || safe > a.safe || head <= safe || a.since.IsZero() {
		a.under, a.safe, a.since = token, safe, now
	}
	return now.Sub(a.since)
}

// oldest is what waited above a consumer's position at a look.
type oldest struct {
	store.Waiting
	at time.Time
}

// age returns how old the first event above a position is, nil if nobody knows. If
// the consumer has handled the event of the look, the age at the look is the best
// that is known.
func (o *oldest) age(position int64, head *int64, now time.Time) *time.Duration {
	var age time.Duration
	switch {
	case head != nil && position >= *head:
	case o == nil:
		return nil
	case o.Position > position:
		age = o.Age + now.Sub(o.at)
	default:
		age = o.Age
	}
	return &age
}

// waitsAt returns up to where a consumer that this worker runs has passed the log, if that is
// below the head.
func (u *unitStatus) waitsAt(head int64) (position int64, waits bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	position = u.passedTo()
	return position, u.s.Assigned && u.known && position < head
}

// sawOldest takes note of what waits, unless another run of the consumer has begun.
func (u *unitStatus) sawOldest(o oldest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.known {
		return
	}
	u.oldest = &o
	switch {
	case o.Position <= u.passedTo(): // none waits, or no longer
		u.waits = time.Time{}
	case u.waits.IsZero():
		u.waits = o.at
	}
}

// watchAges looks at the log if consumers are behind, or if the frontier does not know.
func (w *Worker) watchAges(ctx context.Context) error {
	head, seen := w.frontier.Head()
	if seen && w.frontier.Err() == nil {
		for _, u := range w.allUnits() {
			if _, waits := u.status.waitsAt(head); waits {
				return w.look(ctx)
			}
		}
		return nil
	}
	return w.look(ctx)
}

// look asks the database how far the log is, and how old the events are that this
// worker's consumers have not handled: two statements, whatever their number. It
// fails if the server is not the one that the frontier reads.
func (w *Worker) look(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*w.limits.quick, noAnswer(3*w.limits.quick))
	defer cancel()
	select {
	case w.ages.turn <- struct{}{}:
		defer func() { <-w.ages.turn }()
	case <-ctx.Done():
		return fmt.Errorf("another look at the log goes on, which waits for a connection of the pool or for an answer: %w", context.Cause(ctx))
	}
	conn := &pooled{w: w}
	defer func() { conn.giveBack(err) }()
	if err = conn.take(ctx); err != nil {
		return fmt.Errorf("take a connection of the pool, which needs one besides those of handlers: %w", err)
	}
	token := w.frontier.Value().Token
	var log store.Log = w.bound
	if token != "" {
		log = w.bound.At(token)
	}
	var head int64
	err = w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
		head, err = log.GetLatestGlobalPosition(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	w.ages.sawHead(token, head)
	return w.readAges(ctx, conn, log, head)
}

// readAges reads how old the first event is above each consumer that is below the head.
func (w *Worker) readAges(ctx context.Context, conn *pooled, log store.Log, head int64) error {
	reads, ok := log.(store.AgeReader)
	if !ok {
		if reads, ok = w.log.(store.AgeReader); !ok {
			return nil
		}
	}
	var units []*unit
	var places []store.Place
	for _, u := range w.allUnits() {
		if position, waits := u.status.waitsAt(head); waits {
			units, places = append(units, u), append(places, store.Place{After: position, Types: u.types})
		}
	}
	if len(units) == 0 {
		return nil
	}
	var all []store.Waiting
	err := w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
		all, err = reads.ReadAges(ctx, conn, places)
		return err
	})
	if err != nil || len(all) != len(units) {
		return err
	}
	for i, u := range units {
		u.status.sawOldest(oldest{all[i], time.Now()})
	}
	return nil
}
