package consume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/store"
)

// ages records what the worker has read of the log without the frontier: the head, and when
// Safe last moved. It stays current while the frontier hangs.
type ages struct {
	reading chan struct{} // a semaphore: one goroutine reads at a time

	mu        sync.Mutex
	headToken string // the incarnation of head
	head      int64
	safeToken string    // the incarnation of safe
	safe      int64     // the highest Safe so far
	since     time.Time // when safe last moved or equalled the head
}

func newAges() *ages { return &ages{reading: make(chan struct{}, 1)} }

// headOf returns the latest head of an incarnation, or 0 if none is known.
func (a *ages) headOf(token string) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token != a.headToken {
		return 0
	}
	return a.head
}

func (a *ages) recordHead(token string, head int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.headToken, a.head = token, head
}

// still returns how long safe has not moved while the head was above it. A new session of
// the frontier starts at the settled position. Reaching the same position again does not
// count as a move.
func (a *ages) still(token string, safe, head int64, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token != a.safeToken || safe > a.safe || head <= safe || a.since.IsZero() {
		a.safeToken, a.safe, a.since = token, safe, now
	}
	return now.Sub(a.since)
}

// logReads reads the log on connections of the pool, for the ages of waiting events and for the
// probe of readiness.
type logReads struct {
	*env
	*ages
	log store.Log
}

// watch reads the log if a consumer is behind, or if the frontier knows no head.
func (r *logReads) watch(ctx context.Context) error {
	head, seen := r.frontier.Head()
	if seen && r.frontier.Err() == nil {
		if behind, _ := r.behind(head); len(behind) == 0 {
			return nil
		}
	}
	return r.read(ctx)
}

// behind returns the units below the head, and their places. If the log has ages, behind records
// that no event waits for the other units.
func (r *logReads) behind(head int64) (units []*unit, places []store.Place) {
	_, aged := r.log.(store.AgeReader)
	for _, u := range r.allUnits() {
		if position, waits := u.status.behindAt(head); waits {
			units, places = append(units, u), append(places, store.Place{After: position, Types: u.types})
		} else if aged {
			u.status.caughtUp()
		}
	}
	return units, places
}

// read reads the head of the log and the ages of the events that this worker's consumers
// have not handled. It runs two statements, however many consumers there are. It fails if
// the server's incarnation is not the frontier's.
func (r *logReads) read(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*r.limits.quick, lockwatch.NoAnswer(3*r.limits.quick))
	defer cancel()
	select {
	case r.ages.reading <- struct{}{}:
		defer func() { <-r.ages.reading }()
	case <-ctx.Done():
		return fmt.Errorf("another read of the log still waits for a connection of the pool or for an answer: %w", context.Cause(ctx))
	}
	conn := &pooled{of: &r.connections}
	defer func() { conn.giveBack(err) }()
	if err = conn.take(ctx); err != nil {
		return fmt.Errorf("take a connection of the pool, which needs one besides those of handlers: %w", err)
	}
	token := r.frontier.Value().Token
	var log store.Log = r.bound
	if token != "" {
		log = r.bound.At(token)
	}
	var head int64
	err = r.bounded(ctx, r.limits.quick, into(&head, func(ctx context.Context) (int64, error) { return log.GetLatestGlobalPosition(ctx, conn) }))
	if err != nil {
		return err
	}
	r.recordHead(token, head)
	return r.readAges(ctx, conn, log, head)
}

// readAges reads the age of the first event above each consumer that is below the head.
func (r *logReads) readAges(ctx context.Context, conn *pooled, log store.Log, head int64) error {
	reads, ok := log.(store.AgeReader)
	if !ok {
		if reads, ok = r.log.(store.AgeReader); !ok {
			return nil
		}
	}
	units, places := r.behind(head)
	if len(units) == 0 {
		return nil
	}
	var all []store.Waiting
	err := r.bounded(ctx, r.limits.quick, into(&all, func(ctx context.Context) ([]store.Waiting, error) { return reads.ReadAges(ctx, conn, places) }))
	if err != nil || len(all) != len(units) {
		return err
	}
	for i, u := range units {
		u.status.recordOldest(oldest{all[i], time.Now()})
	}
	return nil
}
