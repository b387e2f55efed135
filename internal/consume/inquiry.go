package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// rowTells reports whether a handler may have ended its transaction, after a
// turn that ended with err. It loads the row after every batch that failed: the
// worker may end before the next load, and nobody would set the checkpoint back.
func (c *consumerLoop) rowTells(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, errRowTells):
		return true
	case !c.last.isOpen():
		return false
	case c.last.seen:
		return true
	}
	ctx, cancel := c.inquiry(ctx)
	defer cancel()
	conn, release, err := c.w.inquiryConn(ctx, c.quickLimit())
	if err != nil {
		return false // the next load will tell
	}
	defer func() { _ = release(err != nil, false) }()
	v, _, err := c.examine(ctx, c.w.db.Plans.On(conn, conn))
	c.last.compared = err == nil
	c.last.seen = err == nil && v != innocent
	return c.last.seen
}

// inquiry bounds a look at the row, or its repair. The end of the worker does
// not end it: what is not set back then, nobody will.
func (c *consumerLoop) inquiry(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.w.limits.leave)
}

// lastChance is inquiry from when the worker is told to stop. A loop whose
// consumer went to another worker has time until then: what it knows of its
// last batch ends with it.
func (c *consumerLoop) lastChance(ctx context.Context) (context.Context, context.CancelFunc) {
	chance, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(c.stop, func() { time.AfterFunc(c.w.limits.leave, cancel) })
	return chance, func() {
		stop()
		cancel()
	}
}

// close is what a loop does before it ends with fatal: it finds out what became
// of its last batch, or says that it could not.
func (c *consumerLoop) close(ctx context.Context, fatal error) error {
	if !c.last.isOpen() {
		return fatal
	}
	chance, cancel := c.lastChance(ctx)
	if fatal != nil {
		cancel()
		chance, cancel = c.inquiry(ctx) // the worker ends because of it
	}
	defer cancel()
	switch found := c.answer(ctx, chance); {
	case found == nil:
		return fatal
	case fatal == nil:
		return found
	default:
		return fmt.Errorf("%w; %w", found, fatal)
	}
}

// answerInTime is answer for as long as the last chance lasts.
func (c *consumerLoop) answerInTime(ctx context.Context) error {
	chance, cancel := c.lastChance(ctx)
	defer cancel()
	return c.answer(ctx, chance)
}

// answer repairs what a handler did that ended its transaction, and returns
// the error that ends the worker. It is nil if the handler did nothing of the
// kind. It tries until the database answers, for as long as chance lasts.
func (c *consumerLoop) answer(ctx, chance context.Context) error {
	began, limit := time.Now(), c.w.cfg.RetryLimit
	for n := 1; ; n++ {
		back := c.w.frontier.Back()
		v, to, err := c.inquire(chance)
		switch {
		case err == nil && v == innocent:
			c.last.compared, c.last.seen = true, false
			return nil
		case err == nil, chance.Err() != nil, limit > 0 && time.Since(began) > limit:
			return c.accuse(ctx, v, to, err)
		}
		c.status.disturbed(err)
		c.w.taskFailed(chance, "find batch outcome", c.unit.name, err)
		if _, soon := chance.Deadline(); soon || c.stop.Err() != nil {
			backoff.Sleep(chance, backoff.Infrastructure(1))
		} else {
			sleepUntil(c.stop, backoff.Infrastructure(n), back)
		}
	}
}

// inquire judges the last batch, and sets the checkpoint back if the handler
// committed. to is where that is then.
func (c *consumerLoop) inquire(ctx context.Context) (v verdict, to int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.w.limits.leave)
	defer cancel()
	conn, release, err := c.w.inquiryConn(ctx, c.quickLimit())
	if err != nil {
		return handlerUnknown, 0, err
	}
	defer func() { _ = release(err != nil, false) }()
	v, now, err := c.examine(ctx, c.w.db.Plans.On(conn, conn))
	if err != nil {
		return handlerUnknown, 0, err
	}
	b := c.last
	b.seen = b.seen || v != innocent
	switch v {
	case handlerRepaired:
		return handlerCommitted, b.repair().To, nil
	case handlerCommitted:
		if err := c.reader.Recount(ctx, conn, now.Token, &b.work.Page, b.through()); err != nil {
			return handlerUnknown, 0, err
		}
		m := b.repair()
		b.work.advance.Token = now.Token
		var repaired bool
		if repaired, err = c.w.checkpoints.Repair(ctx, c.w.db.Plans.On(conn, conn), c.unit.name, b.left(), m); !repaired {
			v = handlerUnknown
		}
		return v, m.To, err
	}
	return v, now.Position, nil
}

// examine judges the last batch by the row. Where that does not tell, it asks
// what became of the batch's transaction. The incarnation must be the one that
// the frontier knows: perhaps another server answers.
func (c *consumerLoop) examine(ctx context.Context, q store.Querier) (v verdict, now *progress.State, err error) {
	b := c.last
	if now, _, err = c.loadRow(ctx, q); err != nil {
		return handlerUnknown, nil, err
	}
	if now.Token != b.work.advance.Token && now.Token != c.w.frontier.Value().Token {
		return handlerUnknown, nil, store.ErrIncarnation
	}
	v = b.judge(now)
	switch {
	case b.end != abandoned && v == innocent:
	case now.Version == b.work.from.Version:
		var p progress.Prepared
		if p, err = c.w.checkpoints.HolderPrepared(ctx, q, c.unit.name); p.Transaction == b.after.Author && err == nil {
			v, b.prepared = handlerPrepared, p
		}
	case b.end == abandoned && b.movedOn(now):
		v, err = c.fate(ctx, q, v)
	}
	return v, now, err
}

// fate judges the last batch by its transaction, after the consumer was moved
// on: by this worker's repair, or by somebody else. v is what is known without
// it.
func (c *consumerLoop) fate(ctx context.Context, q store.Querier, v verdict) (verdict, error) {
	b := c.last
	repaired, err := c.w.checkpoints.Repaired(ctx, q, c.unit.name, b.after, b.work.advance.To)
	if repaired || err != nil {
		return handlerRepaired, err
	}
	fate, err := c.w.checkpoints.TransactionStatus(ctx, q, b.transaction)
	switch {
	case err != nil:
		return v, err
	case fate == "committed":
		return handlerOvertaken, nil
	case fate == "aborted" && b.seen:
		return handlerRolledBack, nil
	}
	return v, nil
}
