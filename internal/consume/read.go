package consume

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// forget makes the loop load its progress again.
func (c *consumerLoop) forget() {
	c.agenda.forget()
	c.unit.reload.forget()
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
	return c.workOf(p, v, visible(c.w.frontier, v))
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
	switch err := c.unit.log.Check(intake, c.unit.name, c.progress, logReader{c, conn}); {
	case errors.As(err, new(txcheck.LogResetError)):
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

// rescope makes the row record this build's scope. done is false if this call has changed
// the row, which must be loaded again.
func (c *consumerLoop) rescope(intake context.Context, conn *sql.Conn) (r result, done bool) {
	is := c.progress.Recorded
	if c.precedence.Runs(is) {
		return result{outcome: again}, true
	}
	changed := false
	err := c.guards.Run(intake, c.w.sessionOf(conn), into(&changed, func(ctx context.Context) (bool, error) { return c.precedence.Claim(ctx, conn, is, c.progress.Token) }))
	switch {
	case err != nil:
		return result{outcome: disturbed, err: err}, true
	case changed:
		c.forget()
		return result{outcome: again}, false
	case c.precedence.Runs(is):
		return result{outcome: again}, true
	}
	return result{outcome: overtaken}, true
}

// errReplaced reports that a split or a merge has replaced the unit. The loop waits until
// the unit is no longer assigned to this worker.
var errReplaced = errors.New("worker: the unit is no more")

// loadFrom loads the progress from the incarnation of v.
func (c *consumerLoop) loadFrom(ctx context.Context, q store.Querier, v *frontier.Value) error {
	p, replaced, err := c.loadRow(ctx, q)
	if err != nil {
		return err
	}
	if v.Token != "" && p.Token != v.Token {
		return store.ErrIncarnation
	}
	if c.check.Last.Compare(p) {
		return txcheck.ErrMismatch
	}
	if v.Token != "" && c.check.Last.IsOpen() {
		c.check.Last = nil // the incarnation of the last batch is gone, and with it the evidence of what its handler did
	}
	if replaced {
		return errReplaced
	}
	c.progress = p
	c.unit.reload.revision.Store(c.progress.Revision)
	c.failures.loaded()
	c.announce(c.progress.Position)
	return nil
}

// read returns the next work under v: new and late events, or the retry of a dead letter.
// Without work it returns the reason as a result.
func (c *consumerLoop) read(intake context.Context, conn *sql.Conn, v *frontier.Value) (*work, result) {
	switch {
	case v.Token == "" || !c.hasWork(v):
		return nil, result{outcome: idle}
	case c.poison.keeps(): // the events before the poison event are committed
		switch {
		case c.othersBetween(c.progress.Position, c.poison.position):
		case c.poison.policy == FailStop:
			return nil, result{outcome: idle, fatal: c.poison.err}
		default:
			return nil, c.failures.pause(intake, conn)
		}
	case c.deferredDue() && !c.deadLetterNext() && !c.hasNewPositions(v):
		at := c.deferred.UpTo
		return c.workOf(reader.Page{Positions: frontier.Page{Checkpoint: at, Through: at}}, v, visible(c.w.frontier, v)), result{} // commits the deferred move
	case c.deadLetterNext() || !c.hasNewPositions(v):
		c.triedDeadLetter = true
		return c.deadLetters.read(intake, conn, v)
	}
	var p reader.Page
	at := c.place()
	err := c.w.reading(intake, c.unit.name, c.w.pidOf(conn), into(&p, func(ctx context.Context) (reader.Page, error) {
		return c.reader.Read(ctx, c.w.db.Plans.Conn(conn), v, at)
	}))
	halved := c.suspect(intake, at.Limit, p.Full, err)
	if err != nil {
		return nil, result{outcome: disturbed, err: err, halved: halved}
	}
	return c.workOf(p, v, visible(c.w.frontier, v)), result{}
}

// logReader reads the log on the loop's connection. It implements [txcheck.LogReader].
type logReader struct {
	c    *consumerLoop
	conn *sql.Conn
}

// EventAt reads the event at a position, if that event can be read.
func (r logReader) EventAt(ctx context.Context, token string, position int64) (is reader.Fingerprint, found bool, err error) {
	err = r.c.w.reading(ctx, r.c.unit.name, r.c.w.pidOf(r.conn), func(ctx context.Context) (err error) {
		is, found, err = r.c.reader.EventAt(ctx, r.c.w.db.Plans.Conn(r.conn), token, position)
		return err
	})
	return is, found, optional(ctx, err)
}

// IsLast reports whether the event at a position is unchanged and is the unit's last event
// up to upTo. It returns false if an event cannot be read.
func (r logReader) IsLast(ctx context.Context, token string, position int64, is reader.Fingerprint, upTo int64) (last bool, err error) {
	err = r.c.w.reading(ctx, r.c.unit.name, r.c.w.pidOf(r.conn), into(&last, func(ctx context.Context) (bool, error) {
		return r.c.reader.IsLast(ctx, r.c.w.db.Plans.Conn(r.conn), token, position, is, upTo, r.c.w.cfg.BatchSize)
	}))
	return last, optional(ctx, err)
}

// optional drops the error of an optional read if the error is due to the event. Such an
// event cannot be read, and an operator may have skipped it. An error of the statement is
// returned, and the read is tried again. An example is a plan that is older than a change
// of a column's type.
func optional(ctx context.Context, err error) error {
	s := pgdriver.SQLState(err)
	if err != nil && ofEvents(ctx, err) && (s == "" || pgdriver.FaultOf(err) == pgdriver.FaultRow || strings.HasPrefix(s, "XX") || s == "58030") { // corrupted data, or a file that cannot be read
		return nil
	}
	return err
}

// pauseAfterLogReset pauses a consumer, so that no worker passes new events when the
// sequence has caught up. The operator who resumes the consumer has read the reason.
func (c *consumerLoop) pauseAfterLogReset(ctx context.Context, conn *sql.Conn, why error) result {
	paused := false
	err := c.quickly(ctx, into(&paused, func(ctx context.Context) (bool, error) {
		return c.w.checkpoints.Pause(ctx, conn, c.unit.name, c.progress, c.w.text(why))
	}))
	if err != nil {
		return result{outcome: disturbed, err: err}
	}
	if paused {
		c.unit.log.Paused(c.progress.Token)
		c.status.setError(why)
		c.w.observers.Notify(observe.ConsumerPaused{Consumer: c.unit.name, Reason: why.Error()})
	}
	return result{outcome: overtaken}
}
