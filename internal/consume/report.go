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
	"github.com/pgfrontier/worker/store"
)

// reports tells the observers what a worker does.
type reports struct {
	observers *runtime.Observers
	source    observe.Worker // this worker, in events
	ascii     bool           // the database's encoding lacks characters, so texts are escaped to ASCII
}

// Tasks that fail at each attempt while the database is away. Other events report that
// outage.
const (
	taskWatch    = "watch checkpoints"
	taskAnnounce = "announce progress"
)

// taskFailed reports err, unless err is nil or ctx has ended.
func (p *reports) taskFailed(ctx context.Context, task, consumer string, err error) {
	if err != nil && ctx.Err() == nil {
		p.observers.Notify(observe.TaskFailed{Worker: p.source, Task: task, Consumer: consumer, Err: errtext.Of(explain(err)),
			Repeats: task == taskWatch || task == taskAnnounce})
	}
}

// deadLetterFailed reports a dead letter whose retry has failed.
func (p *reports) deadLetterFailed(consumer string, e store.PersistedEvent, attempts int, err error) {
	p.observers.Notify(observe.DeadLetterFailed{DeadLetter: observe.DeadLetter{
		Consumer: consumer, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType,
		Attempts: attempts, Error: errtext.Storable(err)}})
}

// text returns an error's text as the database can store it.
func (p *reports) text(err error) string {
	text := errtext.Storable(err)
	if p.ascii {
		text = errtext.ASCII(text)
	}
	return text
}

// skipped reports the marks of a committed batch.
func (p *reports) skipped(consumer string, marks []progress.Mark) {
	for _, m := range marks {
		p.observers.Notify(observe.Skipped{Range: m.Range, Consumer: consumer, Missing: m.Missing, State: observe.SkipState(m.State)})
	}
}

// rescoped reports a change of a unit's recorded scope.
func (p *reports) rescoped(unit string, d progress.Rescoped) {
	if d.From == nil {
		return
	}
	c := observe.ScopeChanged{Consumer: unit, Position: d.Position, From: d.From.Words(), To: d.To.Words()}
	c.Added, c.AllAdded = d.From.Lacks(d.To)
	c.Removed, c.AllRemoved = d.To.Lacks(*d.From)
	p.observers.Notify(c)
}

// deadLettered reports the events of a committed batch that have failed and become dead
// letters.
func (p *reports) deadLettered(consumer string, deadLetters []progress.DeadLetter) {
	for _, l := range deadLetters {
		if l.Replay {
			continue // the event follows events that are replayed, and has not failed
		}
		p.observers.Notify(observe.DeadLettered{DeadLetter: observe.DeadLetter{
			Consumer: consumer, AggregateType: l.Type, AggregateID: l.ID, Position: l.Position, EventID: l.EventID, EventType: l.EventType, Attempts: l.Attempts, Error: l.Error}})
	}
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
func (p *reports) forgetConditions(consumer string) {
	p.observers.Forget(func(s runtime.Subject) bool {
		return s.Consumer == consumer && s.Condition != observe.ConditionUnowned && s.Condition != observe.ConditionStart
	})
}

// observeFrontier makes the frontier report its conditions. If the frontier's connection
// dies, the frontier calls sweep: other connections may be dead, too.
func (p *reports) observeFrontier(f *frontier.Config, sweep func()) {
	blocked := func(h frontier.Holder) runtime.Subject {
		return runtime.Subject{Condition: observe.ConditionTransaction, Detail: cmp.Or(h.GID, "pid "+strconv.Itoa(h.PID)) + ", virtual transaction " + h.VirtualTransaction}
	}
	f.OnFailure = func(err error) {
		err = errtext.Of(err)
		sweep()
		p.observers.Begin(runtime.Subject{Condition: observe.ConditionFrontier}, err)
		p.observers.Notify(observe.FrontierFailed{Err: err})
	}
	f.OnBack = func() { p.observers.End(runtime.Subject{Condition: observe.ConditionFrontier}) }
	f.OnStale = func(h frontier.Holder) {
		p.observers.Begin(blocked(h), fmt.Errorf("a transaction stays open (pid %d, application_name %q, prepared as %q): %s", h.PID, h.ApplicationName, h.GID, h.Remedy()))
		p.observers.Notify(observe.FrontierBlocked{BlockingTransaction: h})
	}
	f.OnFree = func(h frontier.Holder) { p.observers.End(blocked(h)) }
}

// observeCoordination makes the coordination report its conditions. Only the leader reports
// what only the leader knows.
func (p *reports) observeCoordination(c *coord.Config) {
	unowned := func(consumer string) runtime.Subject {
		return runtime.Subject{Condition: observe.ConditionUnowned, Consumer: consumer}
	}
	c.OnFailure = func(err error) {
		err = errtext.Of(explain(err))
		p.observers.Begin(runtime.Subject{Condition: observe.ConditionCoordination}, err)
		p.observers.Notify(observe.CoordinationFailed{Worker: p.source, Err: err})
	}
	c.OnBack = func() { p.observers.End(runtime.Subject{Condition: observe.ConditionCoordination}) }
	c.OnLeader = func(leads bool) {
		if !leads {
			p.observers.Forget(func(s runtime.Subject) bool { return s.Condition == observe.ConditionUnowned })
		}
		p.observers.Notify(observe.LeadershipChanged{Worker: p.source, Leader: leads})
	}
	c.OnUnowned = func(consumer, reason string) {
		p.observers.Begin(unowned(consumer), errors.New(reason))
		p.observers.Notify(observe.ConsumerUnowned{Consumer: consumer, Reason: reason})
	}
	c.OnOwned = func(consumer string) { p.observers.End(unowned(consumer)) }
	c.OnAssigned = func(workers, changes int) {
		p.observers.Notify(observe.Rebalanced{Workers: workers, Changes: changes})
	}
	c.OnReregister = func() { p.observers.Notify(observe.WorkerReregistered{Worker: p.source}) }
	c.OnStaleRemoved = func(rows int) {
		p.observers.Notify(observe.StaleWorkersRemoved{Worker: p.source, Rows: rows})
	}
	c.OnTaskFailed = func(task string, err error) { p.taskFailed(context.Background(), task, "", err) }
}

// batchDone reports a batch with its result to the observers.
func (p *reports) batchDone(b *observe.Batch, r result) {
	b.Overtaken, b.Err = r.outcome == overtaken, r.err
	p.observers.Notify(observe.BatchDone{Batch: *b})
}
