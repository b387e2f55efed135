package txcheck

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// Unit is the unit whose batches are checked, with what the outcome lookup needs.
type Unit struct {
	Name        string
	Checkpoints *progress.Checkpoints
	Plans       *pgdriver.Plans
	Leave       time.Duration // the limit of the last statements when the worker stops
	RetryLimit  time.Duration // 0: none

	// Connect takes a connection of the reserve. release returns it. failed is true if a
	// statement has failed on the connection.
	Connect     func(ctx context.Context) (conn *sql.Conn, release func(failed bool), err error)
	Load        func(ctx context.Context, q store.Querier) (*progress.State, error) // the unit's row
	Incarnation func() string                                                       // the frontier's
	Back        func() <-chan struct{}                                              // closed at the frontier's next recovery
	Stop        func() context.Context                                              // ends when the worker begins to stop
	Failed      func(ctx context.Context, task string, err error)                   // reports a failed try
	Explain     func(err error) error                                               // adds a remedy
	Ended       func(f Fatal) error                                                 // reports f, and returns the error that ends the worker
}

// Check finds out what the handler of a unit's last batch did to its transaction, and sets
// the checkpoint back.
type Check struct {
	unit Unit
	Last *Batch // nil: none, or its incarnation is gone
}

// New returns a Check without a batch.
func New(u Unit) Check { return Check{unit: u} }

// Mismatch reports whether a handler may have ended its transaction, after an
// iteration that ended with err. It loads the row after every failed batch. The worker may
// end before the next load, and then the checkpoint would never be set back.
func (c *Check) Mismatch(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, ErrMismatch):
		return true
	case !c.Last.IsOpen():
		return false
	case c.Last.Seen:
		return true
	}
	ctx, cancel := c.lookupContext(ctx)
	defer cancel()
	conn, release, err := c.unit.Connect(ctx)
	if err != nil {
		return false // the next load shows it
	}
	defer func() { release(err != nil) }()
	v, _, err := c.examine(ctx, c.unit.Plans.On(conn, conn))
	c.Last.compared = err == nil
	c.Last.Seen = err == nil && v != txIntact
	return c.Last.Seen
}

// lookupContext returns a context for an outcome lookup or a repair. The end of the worker
// does not end the context. A checkpoint that is not set back by then is never set back.
func (c *Check) lookupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.unit.Leave)
}

// shutdownDeadline returns a context that ends Unit.Leave after the worker's stop. It
// also gives a loop time whose consumer went to another worker. Only that loop knows its
// last batch.
func (c *Check) shutdownDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(c.unit.Stop(), func() { time.AfterFunc(c.unit.Leave, cancel) })
	return deadline, func() {
		stop()
		cancel()
	}
}

// Close determines the outcome of the last batch before the loop ends with fatal. If Close
// cannot determine it, its error says so.
func (c *Check) Close(ctx context.Context, fatal error) error {
	if !c.Last.IsOpen() {
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

// ResolveBeforeShutdown calls resolve until the shutdown deadline.
func (c *Check) ResolveBeforeShutdown(ctx context.Context) error {
	deadline, cancel := c.shutdownDeadline(ctx)
	defer cancel()
	return c.resolve(ctx, deadline)
}

// resolve repairs the checkpoint after a handler ended its transaction, and returns the
// error that ends the worker. It returns nil if the handler did not end its transaction. It
// retries until the database answers or deadline ends.
func (c *Check) resolve(ctx, deadline context.Context) error {
	began, limit := time.Now(), c.unit.RetryLimit
	for n := 1; ; n++ {
		back := c.unit.Back()
		v, to, err := c.lookup(deadline)
		switch {
		case err == nil && v == txIntact:
			c.Last.compared, c.Last.Seen = true, false
			return nil
		case err == nil, deadline.Err() != nil, limit > 0 && time.Since(began) > limit:
			return c.end(v, to, err)
		}
		c.unit.Failed(deadline, "find batch outcome", err)
		if _, soon := deadline.Deadline(); soon || c.unit.Stop().Err() != nil {
			backoff.Sleep(deadline, backoff.Infrastructure(1))
		} else {
			backoff.SleepUntil(c.unit.Stop(), backoff.Infrastructure(n), back)
		}
	}
}

// end returns the error that ends the worker, if the handler ended its transaction.
func (c *Check) end(v verdict, to int64, failed error) error {
	c.Last.compared = true
	f := c.Last.fatal(v, to, c.unit.Explain(failed))
	if f == nil {
		return nil
	}
	return c.unit.Ended(*f)
}

// lookup judges the last batch, and sets the checkpoint back if the handler
// committed. to is the checkpoint afterwards.
func (c *Check) lookup(ctx context.Context) (v verdict, to int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.unit.Leave)
	defer cancel()
	conn, release, err := c.unit.Connect(ctx)
	if err != nil {
		return handlerUnknown, 0, err
	}
	defer func() { release(err != nil) }()
	v, now, err := c.examine(ctx, c.unit.Plans.On(conn, conn))
	if err != nil {
		return handlerUnknown, 0, err
	}
	b := c.Last
	b.Seen = b.Seen || v != txIntact
	switch v {
	case handlerRepaired:
		return handlerCommitted, b.Undo.Repair(b.through()).To, nil
	case handlerCommitted:
		if err := b.Undo.Recount(ctx, conn, now.Token, b.through()); err != nil {
			return handlerUnknown, 0, err
		}
		m := b.Undo.Repair(b.through())
		b.Token = now.Token
		var repaired bool
		if repaired, err = c.unit.Checkpoints.Repair(ctx, c.unit.Plans.On(conn, conn), c.unit.Name, b.Left(), m); !repaired {
			v = handlerUnknown
		}
		return v, m.To, err
	}
	return v, now.Position, nil
}

// examine judges the last batch by the row. If the row does not show the outcome, examine
// asks for the status of the batch's transaction. The incarnation must be the batch's or
// the frontier's: another server may answer.
func (c *Check) examine(ctx context.Context, q store.Querier) (v verdict, now *progress.State, err error) {
	b := c.Last
	if now, err = c.unit.Load(ctx, q); err != nil {
		return handlerUnknown, nil, err
	}
	if now.Token != b.Token && now.Token != c.unit.Incarnation() {
		return handlerUnknown, nil, store.ErrIncarnation
	}
	v = b.judge(now)
	switch {
	case b.End != Abandoned && v == txIntact:
	case now.Version == b.Before:
		var p progress.Prepared
		if p, err = c.unit.Checkpoints.HolderPrepared(ctx, q, c.unit.Name); p.Transaction == b.After.Author && err == nil {
			v, b.prepared = handlerPrepared, p
		}
	case b.End == Abandoned && b.movedOn(now):
		v, err = c.transactionVerdict(ctx, q, v)
	}
	return v, now, err
}

// transactionVerdict judges the last batch by its transaction's status, after this worker's
// repair or another worker or an operator moved the consumer on. v is the verdict without
// that status.
func (c *Check) transactionVerdict(ctx context.Context, q store.Querier, v verdict) (verdict, error) {
	b := c.Last
	repaired, err := c.unit.Checkpoints.Repaired(ctx, q, c.unit.Name, b.After, b.To)
	if repaired || err != nil {
		return handlerRepaired, err
	}
	status, err := progress.TransactionStatus(ctx, q, b.Transaction)
	switch {
	case err != nil:
		return v, err
	case status == "committed":
		return handlerOvertaken, nil
	case status == "aborted" && b.Seen:
		return handlerRolledBack, nil
	}
	return v, nil
}
