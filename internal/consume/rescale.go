package consume

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// rescaling returns the unit with what its splits and merges need.
func (u *unit) rescaling(w *shared) partitions.Unit {
	return partitions.Unit{Name: u.name, Consumer: u.consumerName, Slots: u.slots, Key: u.key, Barriers: &w.barriers, Checkpoints: &w.checkpoints, Log: w.bound}
}

// rescale splits or merges the unit towards the layout that the leader wants, between two
// batches. It reports whether the loop is to continue at once: units were replaced, or the
// loop has waited for other parts.
func (c *consumerLoop) rescale(intake context.Context) (again bool) {
	assignments, wanted := c.w.coord.Changed(), c.w.coord.Wanted(c.unit.name)
	var a partitions.Arrival
	switch {
	case c.progress != nil:
		a = partitions.Arrival{Position: c.progress.Position, Unready: c.unready(), Deferred: c.deferred.UpTo > 0}
	case wanted > 0:
		return false // the progress is loaded first
	}
	s := c.rescaling.Next(wanted, a, time.Now())
	if s.Bound {
		c.polled = nil // the last page was read within the old bound
	}
	switch {
	case s.Task != "":
		return c.replaceUnits(intake, s)
	case s.Wait != nil:
		s.Wait.Await(intake, assignments, c.unit.reload.c)
		c.forget() // another part may have merged them
		return true
	case s.Reload:
		c.forget()
		return true
	}
	return s.Bound
}

// replaceUnits runs one split or merge, and reports whether units were replaced.
func (c *consumerLoop) replaceUnits(intake context.Context, s partitions.Step) (done bool) {
	var r *progress.Rescaled
	token := c.progress.Token
	limit := c.w.limits.after(max(c.tally.Disturbed, c.rescaling.Failures())) // a unit may have many dead letters, whose keys must be computed
	err := c.w.inTransaction(intake, c.quickLimit(), limit, func(ctx context.Context, tx *sql.Tx) (err error) {
		r, err = c.rescaling.Replace(ctx, tx, token, s)
		return err
	})
	c.forget() // the database knows whether anything was committed
	if done = err == nil && r != nil; done {
		c.w.observers.Notify(observe.Rescaled{Consumer: c.unit.consumerName, From: r.From, To: r.To, Position: r.Position})
		c.w.coord.Wake()
	}
	c.rescaling.Ended(s, done, time.Now())
	if err != nil {
		err = fmt.Errorf("worker: %s of consumer %q: %w", s.Task, c.unit.name, err)
	}
	c.w.taskFailed(intake, s.Task, c.unit.name, err)
	return done
}
