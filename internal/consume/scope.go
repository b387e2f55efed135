package consume

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/consume/lockwatch"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/observe"
)

// widenLimit limits how long a start waits for the batch in flight of a consumer.
const widenLimit = 2 * time.Second

const taskScope = "record what a consumer selects"

// widen records this build's scope for each consumer whose recorded scope is smaller.
// Afterwards no batch of the other build commits, whatever the assignments are, and the
// leader assigns the consumer to this build. A batch in flight ends first. A scope that
// cannot be recorded now is recorded when the consumer is assigned to this worker.
func (w *Worker) widen(ctx context.Context) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, w.cfg.HeartbeatTimeout/2) // coord.Run does not send heartbeats yet
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
	w.taskFailed(whole, taskScope, "", err)
	for _, r := range all {
		u := w.unit(partition.Consumer(r.Unit))
		if u == nil || r.Scope == nil || r.Scope.Compare(u.scope) >= 0 {
			continue
		}
		err := w.bounded(ctx, widenLimit, func(ctx context.Context) error {
			d, ok, err := w.checkpoints.Rescope(ctx, w.db, r, u.scope, "", rescoped(r.Scope, u.scope))
			if ok {
				w.reportRescoped(r.Unit, d)
			}
			return err
		})
		w.taskFailed(whole, taskScope, r.Unit, err)
	}
}

// rescoped returns the reason that the table of operations records for a change of the
// scope.
func rescoped(from *scope.Scope, to scope.Scope) string {
	if from == nil {
		return ""
	}
	return fmt.Sprintf("the code selects %s, and selected %s", to.Words(), from.Words())
}

func (w *Worker) reportRescoped(unit string, d progress.Rescoped) {
	if d.From == nil {
		return
	}
	c := observe.ScopeChanged{Consumer: unit, Position: d.Position, From: d.From.Words(), To: d.To.Words()}
	c.Added, c.AllAdded = d.From.Lacks(d.To)
	c.Removed, c.AllRemoved = d.To.Lacks(*d.From)
	w.observers.Notify(c)
}

// precedence is a loop's state of other builds that select something else.
type precedence struct {
	waiting   bool      // another build has precedence, and the observers know
	alone     time.Time // since when all workers with precedence seem dead; zero: one seems alive
	confirmed bool      // the row has this scope, and no worker with precedence was alive after the scope was recorded
}

// rescope makes the row record this build's scope. done is false if this call has changed
// the row, which must be loaded again. While a worker whose build has precedence is alive,
// the loop waits: the leader assigns the unit to that worker.
func (c *consumerLoop) rescope(intake context.Context, conn *sql.Conn) (r result, done bool) {
	is := c.progress.Recorded
	recorded := is.Scope != nil && is.Scope.Compare(c.unit.scope) == 0
	if recorded && c.precedence.confirmed {
		c.setOutranked(nil)
		return result{outcome: again}, true
	}
	changed := false
	err := c.watched(intake, conn, func(ctx context.Context) (err error) {
		switch {
		case recorded:
			changed, err = c.confirm(ctx, conn)
		case is.Scope != nil && is.Scope.Compare(c.unit.scope) > 0:
			changed, err = c.takeOver(ctx, conn)
		default:
			changed, err = c.record(ctx, conn, c.unit.scope)
		}
		return err
	})
	switch {
	case err != nil:
		return result{outcome: disturbed, err: err}, true
	case changed:
		c.forget()
		return result{outcome: again}, false
	case recorded && c.precedence.confirmed:
		c.setOutranked(nil)
		return result{outcome: again}, true
	}
	return result{outcome: overtaken}, true
}

// record records the scope to of the running code in the unit's row.
func (c *consumerLoop) record(ctx context.Context, conn *sql.Conn, to scope.Scope) (ok bool, err error) {
	is := c.progress.Recorded
	d, ok, err := c.w.checkpoints.Rescope(ctx, conn, is, to, c.progress.Token, rescoped(is.Scope, to))
	if ok {
		c.precedence.confirmed = false
		c.w.reportRescoped(c.unit.name, d)
	}
	return ok, err
}

// takeOver takes the unit from a build with precedence, unless a worker of such a build is
// alive.
func (c *consumerLoop) takeOver(ctx context.Context, conn *sql.Conn) (taken bool, err error) {
	first, err := c.findOutranking(ctx, conn)
	if first != nil || err != nil {
		c.recordOutranking(first)
		return false, err
	}
	return c.record(ctx, conn, c.unit.scope)
}

// confirm checks again, now that the row has this scope, whether a worker with precedence
// is alive. Such a worker may have registered before the row was changed. Its start has
// then read its own scope in the row, and relies on it. confirm gives the unit back to such
// a worker.
func (c *consumerLoop) confirm(ctx context.Context, conn *sql.Conn) (back bool, err error) {
	first, err := c.findOutranking(ctx, conn)
	switch {
	case err != nil:
		return false, err
	case first == nil:
		c.precedence.confirmed, c.precedence.alone = true, time.Time{}
		return false, nil
	case !first.lives:
		c.recordOutranking(first)
		return false, nil
	}
	return c.record(ctx, conn, first.Scope)
}

// watched runs statements that may wait for the row of the unit, with the watch of a guard.
// The status names the blocker, and the batch of a dead worker is ended.
func (c *consumerLoop) watched(intake context.Context, conn *sql.Conn, do func(ctx context.Context) error) error {
	inner, giveUp := context.WithCancelCause(intake)
	defer giveUp(nil)
	end := c.watchGuard(inner, giveUp, conn)
	err := do(inner)
	end(err)
	return lockwatch.WithCause(inner, intake, err)
}

// ahead is another worker whose build has precedence.
type ahead struct {
	progress.Selecting
	lives bool // false: the worker seems dead, which needs a second check
}

// findOutranking returns the worker whose build has precedence. It returns nil if there is
// none, or if all of them are dead. For a part, only workers with the same partition key
// count.
func (c *consumerLoop) findOutranking(ctx context.Context, conn *sql.Conn) (*ahead, error) {
	others, err := c.w.checkpoints.Selecting(ctx, conn, c.unit.consumerName)
	if err != nil {
		return nil, err
	}
	var first *ahead
	for _, o := range others {
		if o.Scope.Compare(c.unit.scope) <= 0 || c.unit.isPart() && o.Key != c.unit.demand.Key {
			continue
		}
		dead, err := c.w.coord.Dead(ctx, c.w.db.DB, o.Worker)
		if err != nil {
			return nil, err
		}
		if first == nil || !dead && (!first.lives || o.Scope.Compare(first.Scope) > 0) {
			first = &ahead{o, !dead}
		}
	}
	p := &c.precedence
	switch {
	case first == nil || first.lives:
		p.alone = time.Time{}
	case p.alone.IsZero():
		p.alone = time.Now()
	case time.Since(p.alone) >= liveness.Confirmation:
		return nil, nil
	}
	return first, nil
}

// recordOutranking records that the unit waits for another worker's build. A nil worker changes
// nothing.
func (c *consumerLoop) recordOutranking(first *ahead) {
	if first != nil {
		c.setOutranked(errOutranked{c.unit.name, c.unit.scope, first.Selecting})
	}
}

// setOutranked records why the unit waits for another build. nil ends the wait.
func (c *consumerLoop) setOutranked(why error) {
	if why == nil {
		if c.precedence.waiting {
			c.status.recovered()
		}
		c.precedence.waiting = false
		c.w.observers.End(c.about(observe.ConditionScope))
		return
	}
	c.status.setError(why)
	if !c.precedence.waiting {
		c.precedence.waiting = true
		c.w.observers.Notify(observe.ConsumerWaiting{Consumer: c.unit.name, Condition: observe.ConditionScope, Err: why})
	}
	c.w.observers.Begin(c.about(observe.ConditionScope), why)
}

// errOutranked is the reason why a unit waits for another build.
type errOutranked struct {
	unit  string
	mine  scope.Scope
	other progress.Selecting
}

func (e errOutranked) Error() string {
	return fmt.Sprintf("worker: consumer %q waits: this build selects %s, and worker %s (%s) runs one that selects %s, which goes first: it gets the consumer; deploy one build, or stop that worker", e.unit, e.mine.Words(), e.other.Worker, e.other.Place, e.other.Scope.Words())
}
