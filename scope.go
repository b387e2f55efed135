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

// widen records this build's scope for each consumer whose recorded scope is smaller. From
// then on no batch of the other build commits, whatever the assignments are, and the leader
// assigns the consumer to this build. A batch in flight ends first. A scope that cannot be
// recorded now is recorded when the consumer is assigned to this worker.
func (w *Worker) widen(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.HeartbeatTimeout/2) // Run sends no heartbeat yet
	defer cancel()
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

// rescoped returns the reason that the table of operations keeps with a change of the scope.
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

// precedence is what a loop knows of builds that select something else.
type precedence struct {
	waiting bool               // another build goes first, and that was told
	alone   time.Time          // since when all workers that go first seem dead; zero: they do not
	taken   *progress.Rescoped // from a build that goes first; nil: the take-over has been confirmed
}

// rescope makes sure that the row records what this code selects. done is false if the row
// has changed and is to be loaded again. While a worker lives whose code goes first, the loop
// waits: the leader gives the unit to that worker.
func (c *consumerLoop) rescope(intake context.Context, conn *sql.Conn) (r result, done bool) {
	is := c.progress.Recorded
	p, order := &c.precedence, 0
	if is.Scope != nil {
		order = is.Scope.Compare(c.unit.scope)
	}
	if is.Scope != nil && order == 0 && p.taken == nil {
		c.outranked(nil)
		return result{outcome: again}, true
	}
	changed := false
	err := c.watched(intake, conn, func(ctx context.Context) (err error) {
		switch {
		case is.Scope != nil && order == 0:
			changed, err = c.confirm(ctx, conn)
		case order > 0:
			changed, err = c.takeOver(ctx, conn)
		default:
			changed, _, err = c.record(ctx, conn, is, c.unit.scope)
		}
		return err
	})
	switch {
	case err != nil:
		return result{outcome: disturbed, err: err}, true
	case changed:
		c.forget()
		return result{outcome: again}, false
	case order == 0 && is.Scope != nil:
		c.outranked(nil)
		return result{outcome: again}, true
	}
	return result{outcome: overtaken}, true
}

// record records in the row that the unit is run by code that selects to.
func (c *consumerLoop) record(ctx context.Context, conn *sql.Conn, is progress.Recorded, to scope.Scope) (ok bool, d progress.Rescoped, err error) {
	d, ok, err = c.w.checkpoints.Rescope(ctx, conn, is, to, c.progress.Token, rescoped(is.Scope, to))
	if ok {
		c.w.tellRescoped(c.unit.name, d)
	}
	return ok, d, err
}

// takeOver takes the unit from code that goes first, unless a worker with such code lives.
func (c *consumerLoop) takeOver(ctx context.Context, conn *sql.Conn) (taken bool, err error) {
	above, err := c.above(ctx, conn)
	if above != nil || err != nil {
		c.outranked(above)
		return false, err
	}
	taken, d, err := c.record(ctx, conn, c.progress.Recorded, c.unit.scope)
	if taken {
		c.precedence.taken, c.precedence.alone = &d, time.Time{}
	}
	return taken, err
}

// confirm gives the unit back if a worker whose code goes first has registered before the
// row was changed: the start of that worker has read its own scope in the row, and relies on it.
func (c *consumerLoop) confirm(ctx context.Context, conn *sql.Conn) (back bool, err error) {
	above, err := c.above(ctx, conn)
	if err != nil {
		return false, err
	}
	if above != nil {
		if back, _, err = c.record(ctx, conn, c.progress.Recorded, *c.precedence.taken.From); err != nil {
			return false, err
		}
	}
	c.precedence.taken = nil
	return back, nil
}

// watched runs statements that may wait for the row of the unit, and watches them as a guard
// is watched: the status names the blocker, and the batch of a dead worker is ended.
func (c *consumerLoop) watched(intake context.Context, conn *sql.Conn, do func(ctx context.Context) error) error {
	inner, giveUp := context.WithCancelCause(intake)
	defer giveUp(nil)
	end := c.watchGuard(inner, giveUp, conn)
	err := do(inner)
	end(err)
	return why(inner, intake, err)
}

// above returns an error that names a living worker with a greater scope, nil if there is
// none. For a part, only workers with the key of its partitions count.
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
			c.precedence.alone = time.Time{}
			return why, nil
		}
		silent = true
	}
	if !silent {
		c.precedence.alone = time.Time{}
		return nil, nil
	}
	if c.precedence.alone.IsZero() {
		c.precedence.alone = time.Now()
	}
	if time.Since(c.precedence.alone) < liveness.Confirmation {
		return why, nil // one look is not enough to take a worker for dead
	}
	return nil, nil
}

// outranked records why the unit waits for another build to run it; nil: it does not wait.
func (c *consumerLoop) outranked(why error) {
	if why == nil {
		if c.precedence.waiting {
			c.status.recovered()
		}
		c.precedence.waiting = false
		c.w.recovered(c.about(TroubleScope))
		return
	}
	c.status.disturbed(why)
	if !c.precedence.waiting {
		c.precedence.waiting = true
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
