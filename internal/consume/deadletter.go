package consume

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// deadLetters reads and writes the dead letters of a loop's unit.
type deadLetters struct {
	statements
	agenda *agenda
}

// read reads the next dead letter to retry, the first of its aggregate or key. If
// the retry fails, it stays a dead letter, and so do all that follow it.
func (d *deadLetters) read(intake context.Context, conn *sql.Conn, v *frontier.Value) (*work, result) {
	if len(d.agenda.progress.Retries) == 0 {
		err := d.quickly(intake, into(&d.agenda.progress.Retries, func(ctx context.Context) ([]progress.Retry, error) {
			return d.w.checkpoints.NextRetries(ctx, d.w.db.Plans.On(conn, conn), d.unit.name, d.agenda.progress.Token)
		}))
		if err != nil {
			return nil, result{outcome: disturbed, err: err}
		}
		if len(d.agenda.progress.Retries) == 0 {
			return nil, result{outcome: overtaken}
		}
	}
	r := d.agenda.progress.Retries[0]
	var events []store.PersistedEvent
	err := d.w.reading(intake, d.unit.name, d.w.pidOf(conn), into(&events, func(ctx context.Context) ([]store.PersistedEvent, error) {
		return d.w.bound.At(v.Token).ReadEvents(ctx, d.w.db.Plans.Conn(conn), r.Position-1, 1)
	}))
	if err != nil {
		return nil, result{outcome: disturbed, err: fmt.Errorf("worker: read a dead letter of consumer %q: %w", d.unit.name, err)}
	}
	at := d.agenda.progress.Position
	w := d.agenda.workOf(reader.Page{Positions: frontier.Page{Checkpoint: at, Through: at}}, v, visible(d.w.frontier, v))
	w.retried = &r
	switch {
	case d.agenda.refused != nil && d.agenda.refused.Position == r.Position:
		r.Err = d.agenda.refused.Err
	case len(events) == 1 && events[0].GlobalPosition == r.Position && r.Replay && len(d.unit.types) > 0 && !slices.Contains(d.unit.types, events[0].AggregateType):
		r.Err = fmt.Errorf("the aggregate was to be replayed, and the consumer has none of type %s (AggregateTypes): discard the dead letter", errtext.Value(events[0].AggregateType))
	case r.Replay && r.Keyless && d.unit.key.Name() != "":
		r.Err = fmt.Errorf("the aggregate was to be replayed, and the consumer keeps events in order by its key %q, which is not that of aggregates: discard the dead letter, and reset the consumer to handle events again", d.unit.key.Name())
	case len(events) == 1 && events[0].GlobalPosition == r.Position:
		w.Events = events
	default:
		r.Err = fmt.Errorf("there is no event at position %d any more", r.Position)
	}
	d.agenda.refused = nil
	return w, result{}
}

// find finds the aggregates or keys of new events that have dead letters. It
// does nothing if none of the events can become a dead letter. It runs after the progress
// was loaded: if the dead letters change before the guard, the guard refuses.
func (d *deadLetters) find(ctx context.Context, q store.Querier, w *work) (err error) {
	if w.retried == nil && d.agenda.poison == nil && !d.agenda.progress.HasDeadLetters {
		return nil
	}
	w.orders = map[int64]progress.Order{}
	var all []progress.Order
	for i := range w.Events {
		o, err := d.unit.key.OrderOf(&w.Events[i], d.w.ascii)
		switch {
		case err != nil && w.retried != nil:
			continue // the dead letter already has its order
		case err != nil:
			return err
		}
		w.orders[w.Events[i].GlobalPosition], all = o, append(all, o)
	}
	if w.retried == nil {
		w.haveDeadLetters, w.replayed, err = d.w.checkpoints.HaveDeadLetters(ctx, q, d.unit.name, d.agenda.progress.Token, all)
	}
	return err
}

// write writes the batch's changes of the dead letters.
func (d *deadLetters) write(ctx context.Context, tx store.Querier, w *work) error {
	if len(w.deadLetters) > 0 {
		return d.w.checkpoints.AddDeadLetters(ctx, tx, d.unit.name, w.deadLetters)
	}
	if w.retried != nil {
		return d.w.checkpoints.Retried(ctx, tx, d.unit.name, w.retried, d.w.text(w.retried.Err))
	}
	return nil
}

// settle updates the loaded progress with the dead letters of a committed batch. known
// reports whether that is possible.
func (d *deadLetters) settle(w *work) (known bool) {
	switch {
	case len(w.deadLetters) > 0:
		d.agenda.progress.HasDeadLetters = true
		d.agenda.progress.DeadLetters = min(d.agenda.progress.DeadLetters+w.joined, progress.DeadLettersCounted)
		d.unit.status.loaded(d.agenda.progress)
	case w.retried == nil:
	case w.retried.Err == nil && !w.retried.Forget && len(d.agenda.progress.Retries) > 1:
		d.agenda.progress.Retries = d.agenda.progress.Retries[1:]
	default:
		return false // the remaining dead letters and retries are unknown
	}
	return true
}

// refuse records that the retry of a dead letter has failed. The next iteration writes the
// failure, on a working connection.
func (d *deadLetters) refuse(r result) {
	d.w.deadLetterFailed(d.unit.name, r.work.Events[0], r.work.retried.Attempts+1, r.err)
	d.agenda.refused = &progress.Retry{Position: r.work.retried.Position, Err: r.err}
	d.agenda.again.Reset()
	about := d.unit.aboutBatch(observe.ConditionBatch, r.work.retried)
	d.w.observers.Forget(func(s runtime.Subject) bool { return s == about }) // the dead letter is not tried any more
}
