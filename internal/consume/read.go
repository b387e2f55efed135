package consume

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
)

// forget makes the loop load its progress again.
func (c *consumerLoop) forget() {
	c.agenda.forget()
	c.unit.reload.revision.Store(noRevision)
}

// takeReadAhead returns the next work if it was read ahead. It drops pages that do not
// follow the progress.
func (c *consumerLoop) takeReadAhead(intake context.Context) *work {
	if c.deadLetterNext() {
		return nil
	}
	_, bounded := c.rescaling.Bound()
	if c.progress == nil || len(c.progress.Open) > 0 || bounded || c.paced() {
		c.reader.Drop()
		return nil
	}
	p, v := c.reader.Take(intake, c.at(), c.progress.Token)
	if v == nil {
		return nil
	}
	return c.workOf(p, v)
}

// workOf returns the work for a page that was read under v.
func (c *consumerLoop) workOf(p reader.Page, v *frontier.Value) *work {
	return &work{Page: p, under: v, from: *c.progress, head: c.w.visible(v)}
}

// visible returns the highest visible position that this worker has seen.
// WithStaleGapHarborLag keeps v.Safe below it.
func (w *Worker) visible(v *frontier.Value) int64 {
	head, _ := w.frontier.Head()
	return max(head, v.Safe)
}

// load loads the progress if it is not loaded. The outcome is again if the iteration can
// continue.
func (c *consumerLoop) load(intake context.Context, conn *sql.Conn, v *frontier.Value) result {
	if c.progress != nil {
		return result{outcome: again}
	}
	switch err := c.quickly(intake, func(ctx context.Context) error { return c.loadFrom(ctx, c.w.db.Plans.On(conn, conn), v) }); {
	case errors.Is(err, errReplaced):
		return result{outcome: overtaken}
	case err != nil:
		return result{outcome: disturbed, err: err}
	}
	switch err := c.checkLogReset(intake, conn); {
	case errors.As(err, new(logResetError)):
		return c.pauseAfterLogReset(intake, conn, err)
	case err != nil:
		c.progress = nil // its incarnation is not confirmed yet
		return result{outcome: disturbed, err: err}
	}
	c.status.loaded(c.progress)
	if r, done := c.rescope(intake, conn); r.outcome != again || done {
		return r
	}
	return c.load(intake, conn, v) // the row now has the scope of this build
}

// errReplaced reports that a split or a merge has replaced the unit. The loop waits until
// the unit is no longer assigned to this worker.
var errReplaced = errors.New("worker: the unit is no more")

// loadRow loads the row of the unit. If the unit was replaced, the state contains only the
// incarnation.
func (c *consumerLoop) loadRow(ctx context.Context, q store.Querier) (p *progress.State, replaced bool, err error) {
	p, err = c.w.checkpoints.Load(ctx, q, c.unit.name)
	switch gone := (progress.NoCheckpointError{}); {
	case err == nil && p.Split, c.unit.isPart() && errors.As(err, &gone):
		p = &progress.State{}
		p.Token, err = c.w.checkpoints.Incarnation(ctx, q)
		return p, true, err
	}
	return p, false, err
}

// loadFrom loads the progress from the incarnation of v.
func (c *consumerLoop) loadFrom(ctx context.Context, q store.Querier, v *frontier.Value) error {
	p, replaced, err := c.loadRow(ctx, q)
	if err != nil {
		return err
	}
	if v.Token != "" && p.Token != v.Token {
		return store.ErrIncarnation
	}
	if c.last.compare(p) {
		return errCheckpointMismatch
	}
	if v.Token != "" && c.last.isOpen() {
		c.last = nil // the incarnation of the last batch is gone, and with it the evidence of what its handler did
	}
	if replaced {
		return errReplaced
	}
	c.progress = p
	c.unit.reload.revision.Store(c.progress.Revision)
	if c.progress.Paused != nil {
		c.tally.Reset() // the operator who resumes the consumer decides about the failures
	}
	c.observeResumed()
	if c.poison != nil && c.poison.revision != c.progress.Revision {
		if c.pausedForPoison() {
			c.announcePause() // the answer of the pause was lost
		}
		c.poison = nil // another worker or an operator has moved the consumer since
	}
	c.announce()
	return nil
}

// read returns the next work under v: new and late events, or the retry of a dead letter.
// Without work it returns the reason as a result.
func (c *consumerLoop) read(intake context.Context, conn *sql.Conn, v *frontier.Value) (*work, result) {
	switch {
	case v.Token == "" || !c.hasWork(v):
		return nil, result{outcome: idle}
	case c.endsAtPoison(): // the events before the poison event are committed
		switch {
		case c.othersBetween(c.progress.Position, c.poison.position):
		case c.poison.policy == FailStop:
			return nil, result{outcome: idle, fatal: c.poison.err}
		default:
			return nil, c.pause(intake, conn)
		}
	case c.deferredDue() && !c.deadLetterNext() && !c.hasNewPositions(v):
		return c.deferredWork(v), result{}
	case c.deadLetterNext() || !c.hasNewPositions(v):
		c.triedDeadLetter = true
		return c.readDeadLetter(intake, conn, v)
	}
	var p reader.Page
	at := c.place()
	err := c.reading(intake, c.pidOf(conn), func(ctx context.Context) (err error) {
		p, err = c.reader.Read(ctx, c.w.db.Plans.Conn(conn), v, at)
		return err
	})
	halved := c.suspect(intake, at.Limit, p.Full, err)
	if err != nil {
		return nil, result{outcome: disturbed, err: err, halved: halved}
	}
	return c.workOf(p, v), result{}
}

// pidOf returns a function that returns the pid of the server process behind conn.
func (c *consumerLoop) pidOf(conn *sql.Conn) func() int64 {
	pid := c.w.sessionOf(conn)
	return func() int64 { return pid }
}

// readDeadLetter reads the next dead letter to retry, the first of its aggregate or key. If
// the retry fails, it stays a dead letter, and so do all that follow it.
func (c *consumerLoop) readDeadLetter(intake context.Context, conn *sql.Conn, v *frontier.Value) (*work, result) {
	if len(c.progress.Retries) == 0 {
		err := c.quickly(intake, func(ctx context.Context) (err error) {
			c.progress.Retries, err = c.w.checkpoints.NextRetries(ctx, c.w.db.Plans.On(conn, conn), c.unit.name, c.progress.Token)
			return err
		})
		if err != nil {
			return nil, result{outcome: disturbed, err: err}
		}
		if len(c.progress.Retries) == 0 {
			return nil, result{outcome: overtaken}
		}
	}
	r := c.progress.Retries[0]
	var events []store.PersistedEvent
	err := c.reading(intake, c.pidOf(conn), func(ctx context.Context) (err error) {
		events, err = c.w.bound.At(v.Token).ReadEvents(ctx, c.w.db.Plans.Conn(conn), r.Position-1, 1)
		return err
	})
	if err != nil {
		return nil, result{outcome: disturbed, err: fmt.Errorf("worker: read a dead letter of consumer %q: %w", c.unit.name, err)}
	}
	at := c.progress.Position
	w := c.workOf(reader.Page{Positions: frontier.Page{Checkpoint: at, Through: at}}, v)
	w.retried = &r
	switch {
	case c.refused != nil && c.refused.Position == r.Position:
		r.Err = c.refused.Err
	case len(events) == 1 && events[0].GlobalPosition == r.Position && r.Replay && len(c.unit.types) > 0 && !slices.Contains(c.unit.types, events[0].AggregateType):
		r.Err = fmt.Errorf("the aggregate was to be replayed, and the consumer has none of type %s (AggregateTypes): discard the dead letter", errtext.Value(events[0].AggregateType))
	case r.Replay && r.Keyless && c.unit.key.Name() != "":
		r.Err = fmt.Errorf("the aggregate was to be replayed, and the consumer keeps events in order by its key %q, which is not that of aggregates: discard the dead letter, and reset the consumer to handle events again", c.unit.key.Name())
	case len(events) == 1 && events[0].GlobalPosition == r.Position:
		w.Events = events
	default:
		r.Err = fmt.Errorf("there is no event at position %d any more", r.Position)
	}
	c.refused = nil
	return w, result{}
}

// findDeadLetters finds the aggregates or keys of new events that have dead letters. It
// does nothing if none of the events can become a dead letter. It runs after the progress
// was loaded: if the dead letters change before the guard, the guard refuses.
func (c *consumerLoop) findDeadLetters(ctx context.Context, q store.Querier, w *work) (err error) {
	if w.retried == nil && c.poison == nil && !c.progress.HasDeadLetters {
		return nil
	}
	w.orders = map[int64]progress.Order{}
	var all []progress.Order
	for i := range w.Events {
		o, err := c.unit.key.OrderOf(&w.Events[i], c.w.ascii)
		switch {
		case err != nil && w.retried != nil:
			continue // the dead letter already has its order
		case err != nil:
			return err
		}
		w.orders[w.Events[i].GlobalPosition], all = o, append(all, o)
	}
	if w.retried == nil {
		w.haveDeadLetters, w.replayed, err = c.w.checkpoints.HaveDeadLetters(ctx, q, c.unit.name, c.progress.Token, all)
	}
	return err
}

// deferredWork returns the work that commits the deferred move.
func (c *consumerLoop) deferredWork(v *frontier.Value) *work {
	at := c.deferred.upTo
	return c.workOf(reader.Page{Positions: frontier.Page{Checkpoint: at, Through: at}}, v)
}
