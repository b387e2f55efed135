package consume

import (
	"context"
	"math"
	"slices"

	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// left returns the row as the last batch left it.
func (b *lastBatch) left() progress.Committed {
	return progress.Committed{After: b.after, To: b.work.advance.To, Head: b.work.advance.Head, Token: b.work.advance.Token, Reason: "the handler committed " + b.reapplied()}
}

// repair returns the progress as if the batch had ended before the event at fault. If that
// event is unknown, it is the progress before the batch.
func (b *lastBatch) repair() progress.Repair {
	w := b.work
	m := progress.Repair{SetBack: w.endAt(b.through())}
	if r := w.retried; r != nil && r.Err == nil {
		e := b.work.Events[0]
		l := deadLetterOf(e, w.orders)
		l.Forget = r.Forget
		l.Error, l.Attempts = ErrTransactionEnded.Error(), r.Attempts+1
		m.DeadLetters, m.Forget = []progress.DeadLetter{l}, r.Forget
	}
	return m
}

// through returns the position up to which the batch has handled its events.
func (b *lastBatch) through() int64 {
	if len(b.fault) == 0 {
		return 0
	}
	return b.fault[0].GlobalPosition - 1
}

// shorten ends a batch at the last handled event, because half of BatchTimeout has passed.
// With its remaining events the batch might exceed BatchTimeout, and its handled events
// would be rolled back and handled again.
func (c *consumerLoop) shorten(ctx context.Context, t *batch.Tx, role string, w *work, b *observe.Batch) error {
	return progress.AsRole(ctx, t.Tx, role, func() error {
		if err := c.reader.Recount(ctx, t.Tx, w.advance.Token, &w.Page, t.Through); err != nil {
			return err
		}
		was := c.last.left()
		w.deadLetters = slices.DeleteFunc(slices.Clone(w.deadLetters), func(l progress.DeadLetter) bool { return l.Position > t.Through })
		version, ok, err := c.w.checkpoints.Shorten(ctx, c.w.db.Plans.On(t.Conn, t.Tx), c.unit.name, was, w.endAt(t.Through))
		if err != nil {
			return err
		}
		if !ok {
			t.Ended = true
			return ErrTransactionEnded
		}
		w.shortened, w.last.position = true, 0
		c.last.work, c.last.after = *w, version
		b.Events, b.Late, b.Last, b.To = len(w.Events), w.late(), t.Through, w.advance.To
		return nil
	})
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
