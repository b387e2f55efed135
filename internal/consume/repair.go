package consume

import (
	"context"
	"database/sql"
	"math"
	"slices"

	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/store"
)

// checked returns the work as the check of its transaction sees it. Later changes of w do not
// change it.
func (w *work) checked(r *reader.Reader) txcheck.Work {
	c := txcheck.Work{
		Before: w.from.Version, From: w.from.Position, To: w.advance.To, Head: w.advance.Head, Token: w.advance.Token,
		Events: w.Events, Undo: &undo{*w, r},
	}
	if w.retried != nil {
		c.Retried = w.retried.Position
	}
	return c
}

// undo sets back the progress of a batch's work. It implements [txcheck.Undo].
type undo struct {
	work
	reader *reader.Reader
}

// Recount counts the missing positions of the page up to through.
func (u *undo) Recount(ctx context.Context, q store.Querier, token string, through int64) error {
	return u.reader.Recount(ctx, q, token, &u.Page, through)
}

// Repair returns the progress as if the batch had ended at position through.
func (u *undo) Repair(through int64) progress.Repair {
	w := u.work
	if w.retried != nil {
		w.handled = []receipt.Event{} // it is a dead letter again
	}
	m := progress.Repair{SetBack: w.endAt(through)}
	if r := w.retried; r != nil && r.Err == nil {
		e := u.Events[0]
		l := deadLetterOf(e, w.orders)
		l.Forget, l.Received = r.Forget, r.Received
		l.Error, l.Attempts = ErrTransactionEnded.Error(), r.Attempts+1
		m.DeadLetters, m.Forget = []progress.DeadLetter{l}, r.Forget
	}
	return m
}

// Release drops the data that is not needed after the commit.
func (u *undo) Release() { u.release() }

// checkedUnit returns the loop's unit with what the check of its transactions needs.
func checkedUnit(c *consumerLoop) txcheck.Unit {
	w, u := c.w, c.unit
	failed := w.sessions(u.name).Failed
	return txcheck.Unit{
		Name: u.name, Checkpoints: &w.checkpoints, Plans: w.db.Plans, Leave: w.limits.leave, RetryLimit: w.cfg.RetryLimit,
		Connect: func(ctx context.Context) (*sql.Conn, func(failed bool), error) {
			conn, release, err := w.lookupConn(ctx, c.quickLimit())
			return conn, func(failed bool) { _ = release(failed, false) }, err
		},
		Load: func(ctx context.Context, q store.Querier) (*progress.State, error) {
			p, _, err := c.loadRow(ctx, q)
			return p, err
		},
		Incarnation: func() string { return w.frontier.Value().Token },
		Back:        func() <-chan struct{} { return w.frontier.Back() },
		Stop:        func() context.Context { return c.stop },
		Failed: func(ctx context.Context, task string, err error) {
			c.status.setError(err)
			failed(ctx, task, err)
		},
		Explain: explain,
		Ended:   c.failures.transactionEnded,
	}
}

// endAt shortens a batch to the position through, and returns the progress to set back to.
// The reader has already recounted the missing positions, see [reader.Reader.Recount].
func (w *work) endAt(through int64) progress.SetBack {
	planned := w.advance
	w.EndAt(through)
	if w.Void.First > through {
		w.Void = store.Missing{}
	}
	w.plan(math.MaxInt)
	s := progress.SetBack{To: w.advance.To, Through: through, Marks: w.advance.Marks}
	w.planReceipt(through)
	if s.Receipt = w.advance.Receipt; len(planned.Rows) > 0 && s.Rows == nil {
		s.Rows = []receipt.Row{} // what the batch has written goes
	}
	if planned.Effects != nil {
		s.Effects = w.deliveredThrough(through)
	}
	for _, o := range w.from.Open {
		if slices.Contains(planned.Gone, o.ID) && !slices.Contains(w.advance.Gone, o.ID) {
			s.Marks = append(s.Marks, progress.Mark{Range: o.Range, Missing: o.Count(), State: progress.Open, Seen: &o.Seen})
		}
	}
	return s
}
