package worker

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/scope"
)

// widenLimit bounds the wait of a start for the batch that a consumer has in hand.
const widenLimit = 2 * time.Second

const taskScope = "record what a consumer selects"

// widen records, for each consumer that other code has run, that this code selects more.
// From then on no batch of the other code commits, whoever it is assigned to, and the leader
// gives the consumer to this build. A batch in hand ends first. What cannot be recorded now
// is recorded when the consumer is assigned to this worker.
func (w *Worker) widen(ctx context.Context) {
	var names []string
	for _, u := range w.units {
		names = append(names, u.name)
	}
	var all []progress.Recorded
	err := w.bounded(ctx, w.limits.quick, func(ctx context.Context) (err error) {
		all, err = w.checkpoints.Scopes(ctx, w.db, names)
		return err
	})
	w.taskFailed(ctx, taskScope, "", err)
	for _, r := range all {
		u := w.unit(partition.Consumer(r.Unit))
		if u == nil || r.Scope == nil || r.Scope.Compare(u.scope) >= 0 {
			continue
		}
		err := w.bounded(ctx, widenLimit, func(ctx context.Context) error {
			d, ok, err := w.checkpoints.Rescope(ctx, w.db, r, u.scope, "", rescoped(r.Scope, u.scope))
			if ok {
				w.tellRescoped(r.Unit, d)
			}
			return err
		})
		w.taskFailed(ctx, taskScope, r.Unit, err)
	}
}

// rescoped says in words what a change of the scope means. It is kept with it.
func rescoped(from *scope.Scope, to scope.Scope) string {
	if from == nil {
		return ""
	}
	return fmt.Sprintf("the code selects %s, and selected %s", to.Words(), from.Words())
}

func (w *Worker) tellRescoped(unit string, d progress.Rescoped) {
	if d.From == nil {
		return
	}
	c := ScopeChange{Consumer: unit, Position: d.Position, From: d.From.Words(), To: d.To.Words()}
	c.Added, c.AllAdded = d.From.Lacks(d.To)
	c.Removed, c.AllRemoved = d.To.Lacks(*d.From)
	tell(w.observer.ScopeChanged, c)
}

// rescope makes sure that the row says what this code selects, and loads it again if that
// has changed. While a worker lives whose code is greater, it waits: the leader gives the
// unit to that one.
func (c *consumerLoop) rescope(intake context.Context, conn *sql.Conn) (r result, done bool) {
	is := c.progress.Recorded
	if is.Scope != nil && is.Scope.Compare(c.unit.scope) == 0 {
		c.outranked(nil)
		return result{outcome: again}, true
	}
	var d progress.Rescoped
	var ok bool
	err := c.watched(intake, conn, func(ctx context.Context) error {
		if is.Scope != nil && is.Scope.Compare(c.unit.scope) > 0 {
			above, err := c.above(ctx, conn)
			if above != nil || err != nil {
				c.outranked(above)
				return err
			}
		}
		var err error
		d, ok, err = c.w.checkpoints.Rescope(ctx, conn, is, c.unit.scope, c.progress.Token, rescoped(is.Scope, c.unit.scope))
		if ok && is.Scope != nil && is.Scope.Compare(c.unit.scope) > 0 {
			return c.yieldsAgain(ctx, conn, is)
		}
		return err
	})
	switch {
	case err != nil:
		return result{outcome: disturbed, err: err}, true
	case ok:
		c.w.tellRescoped(c.unit.name, d)
		c.outranked(nil)
		c.forget()
		c.alone = time.Time{}
		return result{outcome: again}, false
	}
	return result{outcome: overtaken}, true
}

// watched runs what may wait for the row of the unit, and watches it as a guard is watched:
// whose lock it waits for is said, and the batch of a dead worker is ended.
func (c *consumerLoop) watched(intake context.Context, conn *sql.Conn, do func(ctx context.Context) error) error {
	inner, giveUp := context.WithCancelCause(intake)
	defer giveUp(nil)
	end := c.watchGuard(inner, giveUp, conn)
	err := do(inner)
	end(err)
	return why(inner, intake, err)
}

// yieldsAgain gives the unit back that was taken from code that selected more, if a worker
// with such code has registered meanwhile: that has seen its own scope in the row, and
// counts on it.
func (c *consumerLoop) yieldsAgain(ctx context.Context, conn *sql.Conn, was progress.Recorded) error {
	above, err := c.above(ctx, conn)
	if above == nil || err != nil {
		return err
	}
	mine := progress.Recorded{Unit: was.Unit, Scope: &c.unit.scope}
	all, err := c.w.checkpoints.Scopes(ctx, conn, []string{c.unit.title})
	for _, r := range all {
		if r.Unit == was.Unit {
			mine.Stored = r.Stored
		}
	}
	if err == nil {
		var d progress.Rescoped
		var ok bool
		if d, ok, err = c.w.checkpoints.Rescope(ctx, conn, mine, *was.Scope, c.progress.Token, rescoped(&c.unit.scope, *was.Scope)); ok {
			c.w.tellRescoped(c.unit.name, d)
		}
	}
	return err
}

// above returns why the unit waits: another worker lives, or may, whose code selects more
// than this, and can run it. A part takes a worker with the key of the others.
func (c *consumerLoop) above(ctx context.Context, conn *sql.Conn) (why error, err error) {
	others, err := c.w.checkpoints.Selecting(ctx, conn, c.unit.title)
	if err != nil {
		return nil, err
	}
	var silent bool
	for _, o := range others {
		if o.Scope.Compare(c.unit.scope) <= 0 || c.unit.isPart() && o.Key != c.unit.wish.Key {
			continue
		}
		dead, err := c.w.coord.Dead(ctx, c.w.db.DB, o.Worker)
		if err != nil {
			return nil, err
		}
		if why = (errOutranked{c.unit.name, c.unit.scope, o}); !dead {
			c.alone = time.Time{}
			return why, nil
		}
		silent = true
	}
	if !silent {
		c.alone = time.Time{}
		return nil, nil
	}
	if c.alone.IsZero() {
		c.alone = time.Now()
	}
	if time.Since(c.alone) < liveness.Confirmation {
		return why, nil // one look is not enough to take a worker for dead
	}
	return nil, nil
}

// outranked takes note that the unit waits for another build to run it, or that it does
// not.
func (c *consumerLoop) outranked(why error) {
	if why == nil {
		if c.waiting {
			c.status.recovered()
		}
		c.waiting = false
		c.w.recovered(c.about(TroubleScope))
		return
	}
	c.status.disturbed(why)
	if !c.waiting {
		c.waiting = true
		tell(c.w.observer.ConsumerWaiting, ConsumerWait{c.unit.name, TroubleScope, why})
	}
	c.w.troubled(c.about(TroubleScope), why)
}

// errOutranked makes a unit wait.
type errOutranked struct {
	unit  string
	mine  scope.Scope
	other progress.Selecting
}

func (e errOutranked) Error() string {
	return fmt.Sprintf("worker: consumer %q waits: this build selects %s, and worker %s (%s) runs one that selects %s, which goes first: it gets the consumer; deploy one build, or stop that worker", e.unit, e.mine.Words(), e.other.Worker, e.other.Place, e.other.Scope.Words())
}
