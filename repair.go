package worker

import (
	"math"
	"slices"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// left is the last batch as it left the row.
func (b *lastBatch) left() progress.Committed {
	return progress.Committed{After: b.after, To: b.work.advance.To, Head: b.work.advance.Head, Token: b.work.advance.Token, Reason: "the handler committed " + b.twice()}
}

// repair finds the progress as it would be if the batch had ended before the
// event at fault; if that is not known, as it was before the batch.
func (b *lastBatch) repair() progress.Repair {
	m := progress.Repair{}
	if len(b.fault) > 0 {
		m.Through = b.fault[0].GlobalPosition - 1
	}
	w := b.work
	w.EndAt(m.Through)
	if w.Void.First > m.Through {
		w.Void = store.Missing{} // a sum that begins below stays: all of it is void
	}
	w.plan(math.MaxInt)
	part := w.advance
	m.To, m.Marks = part.To, part.Marks
	if b.work.advance.Effects != nil {
		m.Effects = w.effectsThrough(m.Through)
	}
	for _, o := range w.from.Open {
		if slices.Contains(b.work.advance.Gone, o.ID) && !slices.Contains(part.Gone, o.ID) {
			m.Marks = append(m.Marks, progress.Mark{Range: o.Range, Missing: o.Count(), State: progress.Open, Seen: &o.Seen})
		}
	}
	if r := w.retried; r != nil && r.Err == nil {
		e := b.work.Events[0]
		l := deadLetterOf(e, w.orders)
		l.Forget = r.Forget
		l.Error, l.Attempts = ErrTransactionEnded.Error(), r.Attempts+1
		m.Letters, m.Forget = []progress.DeadLetter{l}, r.Forget
	}
	return m
}
