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

// checkpointMismatch reports whether a handler may have ended its transaction, after an
// iteration that ended with err. It loads the row after every failed batch. The worker may
// end before the next load, and then the checkpoint would never be set back.
func (c *consumerLoop) checkpointMismatch(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, errCheckpointMismatch):
		return true
	case !c.last.isOpen():
		return false
	case c.last.seen:
		return true
	}
	ctx, cancel := c.lookupContext(ctx)
	defer cancel()
	conn, release, err := c.w.lookupConn(ctx, c.quickLimit())
	if err != nil {
		return false // the next load shows it
	}
	defer func() { _ = release(err != nil, false) }()
	v, _, err := c.examine(ctx, c.w.db.Plans.On(conn, conn))
	c.last.compared = err == nil
	c.last.seen = err == nil && v != txIntact
	return c.last.seen
}

// lookupContext returns a context for an outcome lookup or a repair. The end of the worker
// does not end the context. A checkpoint that is not set back by then is never set back.
func (c *consumerLoop) lookupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.w.limits.leave)
}

// shutdownDeadline returns a context that ends limits.leave after the worker's stop. It
// also gives a loop time whose consumer went to another worker. Only that loop knows its
// last batch.
func (c *consumerLoop) shutdownDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(c.stop, func() { time.AfterFunc(c.w.limits.leave, cancel) })
	return deadline, func() {
		stop()
		cancel()
	}
}

// close determines the outcome of the last batch before the loop ends with fatal. If close
// cannot determine it, its error says so.
func (c *consumerLoop) close(ctx context.Context, fatal error) error {
	if !c.last.isOpen() {
		return fatal
	}
	deadline, cancel := c.shutdownDeadline(ctx)
	if fatal != nil {
		cancel()
		deadline, cancel = c.lookupContext(ctx) // the worker ends because of fatal
	}
	defer cancel()
	switch found := c.resolve(ctx, deadline); {
	case found == nil:
		return fatal
	case fatal == nil:
		return found
	default:
		return fmt.Errorf("%w; %w", found, fatal)
	}
}

// resolveBeforeShutdown calls resolve until the shutdown deadline.
func (c *consumerLoop) resolveBeforeShutdown(ctx context.Context) error {
	deadline, cancel := c.shutdownDeadline(ctx)
	defer cancel()
	return c.resolve(ctx, deadline)
}

// resolve repairs the checkpoint after a handler ended its transaction, and returns the
// error that ends the worker. It returns nil if the handler did not end its transaction. It
// retries until the database answers or deadline ends.
func (c *consumerLoop) resolve(ctx, deadline context.Context) error {
	began, limit := time.Now(), c.w.cfg.RetryLimit
	for n := 1; ; n++ {
		back := c.w.frontier.Back()
		v, to, err := c.lookupOutcome(deadline)
		switch {
		case err == nil && v == txIntact:
			c.last.compared, c.last.seen = true, false
			return nil
		case err == nil, deadline.Err() != nil, limit > 0 && time.Since(began) > limit:
			return c.fatalError(ctx, v, to, err)
		}
		c.status.setError(err)
		c.w.taskFailed(deadline, "find batch outcome", c.unit.name, err)
		if _, soon := deadline.Deadline(); soon || c.stop.Err() != nil {
			backoff.Sleep(deadline, backoff.Infrastructure(1))
		} else {
			sleepUntil(c.stop, backoff.Infrastructure(n), back)
		}
	}
}

// lookupOutcome judges the last batch, and sets the checkpoint back if the handler
// committed. to is the checkpoint afterwards.
func (c *consumerLoop) lookupOutcome(ctx context.Context) (v verdict, to int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.w.limits.leave)
	defer cancel()
	conn, release, err := c.w.lookupConn(ctx, c.quickLimit())
	if err != nil {
		return handlerUnknown, 0, err
	}
	defer func() { _ = release(err != nil, false) }()
	v, now, err := c.examine(ctx, c.w.db.Plans.On(conn, conn))
	if err != nil {
		return handlerUnknown, 0, err
	}
	b := c.last
	b.seen = b.seen || v != txIntact
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

// examine judges the last batch by the row. If the row does not show the outcome, examine
// asks for the status of the batch's transaction. The incarnation must be the batch's or
// the frontier's: another server may answer.
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
	case b.end != abandoned && v == txIntact:
	case now.Version == b.work.from.Version:
		var p progress.Prepared
		if p, err = c.w.checkpoints.HolderPrepared(ctx, q, c.unit.name); p.Transaction == b.after.Author && err == nil {
			v, b.prepared = handlerPrepared, p
		}
	case b.end == abandoned && b.movedOn(now):
		v, err = c.transactionVerdict(ctx, q, v)
	}
	return v, now, err
}

// transactionVerdict judges the last batch by its transaction's status, after this worker's
// repair or another worker or an operator moved the consumer on. v is the verdict without
// that status.
func (c *consumerLoop) transactionVerdict(ctx context.Context, q store.Querier, v verdict) (verdict, error) {
	b := c.last
	repaired, err := c.w.checkpoints.Repaired(ctx, q, c.unit.name, b.after, b.work.advance.To)
	if repaired || err != nil {
		return handlerRepaired, err
	}
	status, err := c.w.checkpoints.TransactionStatus(ctx, q, b.transaction)
	switch {
	case err != nil:
		return v, err
	case status == "committed":
		return handlerOvertaken, nil
	case status == "aborted" && b.seen:
		return handlerRolledBack, nil
	}
	return v, nil
}
