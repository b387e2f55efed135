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

const taskScope = "record what a consumer selects"

// widen records, for each consumer that other code has run, that this code selects more.
// From then on no batch of the other code commits, whoever it is assigned to, and the leader
// gives the consumer to this build. A batch in hand ends first. What cannot be recorded now
// is recorded when the consumer is assigned to this worker.
func (w *Worker) widen(ctx context.Context) {
	err := w.bounded(ctx, w.limits.quick, func(ctx context.Context) error {
		var names []string
		for _, u := range w.units {
			names = append(names, u.name)
		}
		all, err := w.checkpoints.Scopes(ctx, w.db, names)
		for _, r := range all {
			u := w.unit(partition.Consumer(r.Unit))
			if err != nil || u == nil || r.Scope == nil || r.Scope.Compare(u.scope) >= 0 {
				continue
			}
			var d progress.Rescoped
			var ok bool
			if d, ok, err = w.checkpoints.Rescope(ctx, w.db, r, u.scope, "", rescoped(r.Scope, u.scope)); ok {
				w.tellRescoped(r.Unit, d)
			}
		}
		return err
	})
	w.taskFailed(ctx, taskScope, "", err)
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
	err := c.quickly(intake, func(ctx context.Context) error {
		if is.Scope != nil && is.Scope.Compare(c.unit.scope) > 0 {
			above, err := c.above(ctx, conn)
			if above != nil || err != nil {
				c.outranked(above)
				return err
			}
		}
		var err error
		d, ok, err = c.w.checkpoints.Rescope(ctx, conn, is, c.unit.scope, c.progress.Token, rescoped(is.Scope, c.unit.scope))
		return err
	})
	switch {
	case err != nil:
		return result{outcome: disturbed, err: err}, true
	case ok:
		c.w.tellRescoped(c.unit.name, d)
		c.outranked(nil)
		c.forget()
		return result{outcome: again}, false
	}
	return result{outcome: overtaken}, true
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
