package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// source names this worker in events.
func (w *Worker) source() observe.Worker { return observe.Worker{Kind: observe.KindEvents, ID: w.id} }

// Tasks that fail at each attempt while the database is away. Other events report that
// outage.
const (
	taskWatch    = "watch checkpoints"
	taskAnnounce = "announce progress"
)

// taskFailed reports err, unless err is nil or ctx has ended.
func (w *Worker) taskFailed(ctx context.Context, task, consumer string, err error) {
	if err != nil && ctx.Err() == nil {
		w.observers.Notify(observe.TaskFailed{Worker: w.source(), Task: task, Consumer: consumer, Err: errtext.Of(explain(err)),
			Repeats: task == taskWatch || task == taskAnnounce})
	}
}

// deadLetterFailed reports a dead letter whose retry has failed.
func (w *Worker) deadLetterFailed(consumer string, r result) {
	e := r.work.Events[0]
	w.observers.Notify(observe.DeadLetterFailed{DeadLetter: observe.DeadLetter{
		Consumer: consumer, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType,
		Attempts: r.work.retried.Attempts + 1, Error: errtext.Storable(r.err)}})
}

// text returns an error's text as the database can store it.
func (w *Worker) text(err error) string {
	text := errtext.Storable(err)
	if w.ascii {
		text = errtext.ASCII(text)
	}
	return text
}

// skipped reports the marks of a committed batch.
func (w *Worker) skipped(consumer string, marks []progress.Mark) {
	for _, m := range marks {
		w.observers.Notify(observe.Skipped{Range: m.Range, Consumer: consumer, Missing: m.Missing, State: observe.SkipState(m.State)})
	}
}

// deadLettered reports the events of a committed batch that have failed and become dead
// letters.
func (w *Worker) deadLettered(consumer string, deadLetters []progress.DeadLetter) {
	for _, l := range deadLetters {
		if l.Replay {
			continue // the event follows events that are replayed, and has not failed
		}
		w.observers.Notify(observe.DeadLettered{DeadLetter: observe.DeadLetter{
			Consumer: consumer, AggregateType: l.Type, AggregateID: l.ID, Position: l.Position, EventID: l.EventID, EventType: l.EventType, Attempts: l.Attempts, Error: l.Error}})
	}
}

// about returns the subject of a condition of the loop's unit.
func (c *consumerLoop) about(condition observe.Condition) runtime.Subject {
	return c.unit.about(condition)
}

// about returns the subject of a condition of the unit.
func (u *unit) about(condition observe.Condition) runtime.Subject {
	return runtime.Subject{Condition: condition, Consumer: u.name}
}

// aboutBatch returns the subject of a condition of new events, or of a dead letter.
func (u *unit) aboutBatch(condition observe.Condition, r *progress.Retry) runtime.Subject {
	s := u.about(condition)
	if r != nil {
		s.Detail = "dead letter"
	}
	return s
}

// forgetConditions drops the conditions of a consumer whose loop has ended. The worker that
// runs the consumer next begins its own. It keeps ConditionUnowned and ConditionStart,
// which are not the loop's.
func (w *Worker) forgetConditions(consumer string) {
	w.observers.Forget(func(s runtime.Subject) bool {
		return s.Consumer == consumer && s.Condition != observe.ConditionUnowned && s.Condition != observe.ConditionStart
	})
}

// observeFrontier makes the frontier report its conditions. If the frontier's connection
// dies, the frontier wakes the sweep: other connections may be dead, too.
func (w *Worker) observeFrontier(f *frontier.Config) {
	blocked := func(h frontier.Holder) runtime.Subject {
		return runtime.Subject{Condition: observe.ConditionTransaction, Detail: cmp.Or(h.GID, "pid "+strconv.Itoa(h.PID)) + ", virtual transaction " + h.VirtualTransaction}
	}
	f.OnFailure = func(err error) {
		err = errtext.Of(err)
		w.sweepNow.Send()
		w.observers.Begin(runtime.Subject{Condition: observe.ConditionFrontier}, err)
		w.observers.Notify(observe.FrontierFailed{Err: err})
	}
	f.OnBack = func() { w.observers.End(runtime.Subject{Condition: observe.ConditionFrontier}) }
	f.OnStale = func(h frontier.Holder) {
		w.observers.Begin(blocked(h), fmt.Errorf("a transaction stays open (pid %d, application_name %q, prepared as %q): %s", h.PID, h.ApplicationName, h.GID, h.Remedy()))
		w.observers.Notify(observe.FrontierBlocked{BlockingTransaction: h})
	}
	f.OnFree = func(h frontier.Holder) { w.observers.End(blocked(h)) }
}

// observeCoordination makes the coordination report its conditions. Only the leader reports
// what only the leader knows.
func (w *Worker) observeCoordination(c *coord.Config) {
	unowned := func(consumer string) runtime.Subject {
		return runtime.Subject{Condition: observe.ConditionUnowned, Consumer: consumer}
	}
	c.OnFailure = func(err error) {
		err = errtext.Of(explain(err))
		w.observers.Begin(runtime.Subject{Condition: observe.ConditionCoordination}, err)
		w.observers.Notify(observe.CoordinationFailed{Worker: w.source(), Err: err})
	}
	c.OnBack = func() { w.observers.End(runtime.Subject{Condition: observe.ConditionCoordination}) }
	c.OnLeader = func(leads bool) {
		if !leads {
			w.observers.Forget(func(s runtime.Subject) bool { return s.Condition == observe.ConditionUnowned })
		}
		w.observers.Notify(observe.LeadershipChanged{Worker: w.source(), Leader: leads})
	}
	c.OnUnowned = func(consumer, reason string) {
		w.observers.Begin(unowned(consumer), errors.New(reason))
		w.observers.Notify(observe.ConsumerUnowned{Consumer: consumer, Reason: reason})
	}
	c.OnOwned = func(consumer string) { w.observers.End(unowned(consumer)) }
	c.OnAssigned = func(workers, changes int) {
		w.observers.Notify(observe.Rebalanced{Workers: workers, Changes: changes})
	}
	c.OnDrain = w.life.Stop.Drain
	c.OnReregister = func() { w.observers.Notify(observe.WorkerReregistered{Worker: w.source()}) }
	c.OnStaleRemoved = func(rows int) {
		w.observers.Notify(observe.StaleWorkersRemoved{Worker: w.source(), Rows: rows})
	}
	c.OnTaskFailed = func(task string, err error) { w.taskFailed(context.Background(), task, "", err) }
}

// batchDone reports a batch with its result to the observers.
func (w *Worker) batchDone(b *observe.Batch, r result) {
	b.Overtaken, b.Err = r.outcome == overtaken, r.err
	w.observers.Notify(observe.BatchDone{Batch: *b})
}
