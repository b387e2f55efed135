package consume

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// rescaleAgain is the pause, before jitter, after the first failed split or merge.
const rescaleAgain = 100 * time.Millisecond

// rescaling is a loop's state of splits and merges.
type rescaling struct {
	wanted      int    // the wanted number of partitions, as last read
	target      string // the name of the unit to merge into; empty: none
	bounded     bool
	upTo        int64     // the last position to read, if bounded
	nextArrival time.Time // when to arrive at the barrier again, at the latest
	failures    int       // failed splits and merges in a row
	due         time.Time
}

// setWanted records the wanted number of partitions. A new number clears the failures.
func (r *rescaling) setWanted(n int) {
	if n != r.wanted {
		r.wanted, r.failures, r.due = n, 0, time.Time{}
	}
}

// rescale splits or merges the unit towards the layout that the leader wants, between two
// batches. It reports whether the loop is to continue at once: units were replaced, or the
// loop has waited for other parts.
//
// Any worker may run a step at any time: the step reads everything that matters in its own
// transaction. So the loop keeps no state here that could be outdated.
func (c *consumerLoop) rescale(intake context.Context) (again bool) {
	wanted := c.w.coord.Wanted(c.unit.name)
	switch {
	case wanted == 0:
		c.leaveBarrier()
		c.rescaling.setWanted(0) // drop the failures
		return false
	case c.progress == nil:
		return false // the progress is loaded first
	}
	c.rescaling.setWanted(wanted)
	children := c.unit.slots.Children(wanted)
	target := partition.Target(wanted, c.unit.slots.First)
	switch {
	case len(children) > 1:
		c.leaveBarrier()
		if time.Now().Before(c.rescaling.due) {
			return false
		}
		return c.replaceUnits(intake, "split", func(ctx context.Context, tx *sql.Tx) (*progress.Rescaled, error) {
			return c.split(ctx, tx, children, wanted)
		})
	case c.unit.slots == target:
		c.leaveBarrier()
		return false
	}
	return c.joinBarrier(intake, target, wanted)
}

// joinBarrier takes part in the barrier of target's parts. The part that arrives last
// merges them.
func (c *consumerLoop) joinBarrier(intake context.Context, target partition.Range, wanted int) (again bool) {
	name := partition.Name(c.unit.consumerName, target)
	if c.rescaling.target != name {
		c.leaveBarrier()
		c.rescaling.target = name
		if c.deferred.upTo > 0 {
			c.forget() // parts merge at their checkpoints, so a deferred move is dropped
			return true
		}
	}
	m := &c.w.barriers
	changed, assignments := m.changed(), c.w.coord.Changed()
	do := m.arrive(name, target, c.unit.name, time.Now(), participant{slots: c.unit.slots, at: c.progress.Position, unready: c.unready()})
	c.rescaling.nextArrival = do.until
	moved := c.bound(do.bounded, do.upTo)
	switch {
	case do.merge:
		parts := m.partsOf(name)
		done := c.replaceUnits(intake, "merge", func(ctx context.Context, tx *sql.Tx) (*progress.Rescaled, error) {
			return c.merge(ctx, tx, name, target, parts, wanted)
		})
		m.abort(name, c.rescaling.due)
		return done
	case do.wait:
		timer := time.NewTimer(time.Until(do.until))
		defer timer.Stop()
		select {
		case <-changed:
		case <-assignments:
		case <-timer.C:
		case <-c.unit.reload.c:
		case <-intake.Done():
		}
		c.forget() // another part may have merged them
		return true
	}
	return moved
}

// bound sets the last position that the unit may read, and reports whether that is new. If
// it is new, the unit polls again: the last page was read within the old bound.
func (c *consumerLoop) bound(bounded bool, upTo int64) (changed bool) {
	if changed = c.rescaling.bounded != bounded || bounded && c.rescaling.upTo != upTo; changed {
		c.polled = nil
	}
	c.rescaling.bounded, c.rescaling.upTo = bounded, upTo
	return changed
}

// nextCheck returns when a waiting loop must continue without a signal. It must check the
// wanted layout again, or commit a deferred move. ok is false if it need not.
func (c *consumerLoop) nextCheck() (at time.Time, ok bool) {
	switch {
	case c.rescaling.target != "":
		at = c.rescaling.nextArrival
	case c.rescaling.failures > 0:
		at = c.rescaling.due
	}
	if c.deferred.upTo > 0 {
		if due := c.deferred.since.Add(deferLimit(c.unit.slots)); at.IsZero() || due.Before(at) {
			at = due
		}
	}
	return at, !at.IsZero()
}

// unready reports whether the unit is paused or failing, so that no other part waits for
// it.
func (c *consumerLoop) unready() bool {
	t := &c.tally
	return c.progress.Paused != nil || t.Failures > 0 || t.Disturbed > 0 || t.Bisection.Active() || c.poison != nil || c.atOpenRangeLimit
}

// leaveBarrier leaves the barrier, because the unit is not to be merged, or not by this
// worker.
func (c *consumerLoop) leaveBarrier() {
	if c.rescaling.target != "" {
		c.w.barriers.leave(c.rescaling.target, c.unit.name)
		c.rescaling.target = ""
		c.bound(false, 0)
	}
}

// replaceUnits runs one split or merge, and reports whether units were replaced. A failure
// is retried after a pause.
func (c *consumerLoop) replaceUnits(intake context.Context, what string, replace func(ctx context.Context, tx *sql.Tx) (*progress.Rescaled, error)) (done bool) {
	var r *progress.Rescaled
	err := c.inTransaction(intake, func(ctx context.Context, tx *sql.Tx) (err error) {
		r, err = replace(ctx, tx)
		return err
	})
	c.forget() // the database knows whether anything was committed
	c.rescaling.failures++
	if err == nil && r != nil {
		c.rescaling.failures = 0
		c.w.observers.Notify(observe.Rescaled{Consumer: c.unit.consumerName, From: r.From, To: r.To, Position: r.Position})
		c.w.coord.Wake()
	}
	c.rescaling.due = time.Now().Add(backoff.Delay(c.rescaling.failures, rescaleAgain, barrierLimit, rand.Float64()))
	if err != nil {
		err = fmt.Errorf("worker: %s of consumer %q: %w", what, c.unit.name, err)
	}
	c.w.taskFailed(intake, what, c.unit.name, err)
	return err == nil && r != nil
}

// tryLimit is the time limit of a split or a merge. It grows with each failure: a unit may
// have many dead letters, whose keys must be computed.
func (c *consumerLoop) tryLimit() time.Duration {
	return c.w.limits.after(max(c.tally.Disturbed, c.rescaling.failures))
}

// inTransaction runs a short transaction on a connection of the loops' budget.
func (c *consumerLoop) inTransaction(ctx context.Context, do func(ctx context.Context, tx *sql.Tx) error) (err error) {
	conn, release, err := c.w.loopConn(ctx, c.quickLimit())
	if err != nil {
		return err
	}
	defer func() { _ = release(err != nil, false) }()
	return c.w.bounded(ctx, c.tryLimit(), func(ctx context.Context) error {
		tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // no effect after the commit
		return do(ctx, tx)
	})
}

// split replaces this unit by children. It returns nil if the unit was already replaced, or
// need not be split any more.
func (c *consumerLoop) split(ctx context.Context, tx *sql.Tx, children []partition.Range, wanted int) (*progress.Rescaled, error) {
	token := c.progress.Token
	r, ok, err := c.w.checkpoints.Rescale(ctx, tx, c.unit.consumerName, token)
	if !ok || err != nil {
		return nil, err
	}
	position, found, ok, err := r.LockUnit(ctx, c.unit.name, wanted)
	if !ok || err != nil {
		return nil, err
	}
	d := progress.Rescaled{From: []string{c.unit.name}, Position: position, Partitions: wanted}
	for _, child := range children {
		d.To = append(d.To, partition.Name(c.unit.consumerName, child))
	}
	deadLetters := map[int64]string{}
	for _, l := range found {
		slot, err := c.slotOfDeadLetter(ctx, tx, token, l)
		if err != nil {
			return nil, err
		}
		for i, child := range children {
			if child.Has(slot) {
				deadLetters[l.Position] = d.To[i]
			}
		}
		if deadLetters[l.Position] == "" {
			return nil, fmt.Errorf("the dead letter at position %d has a key of another unit: the key %q returns another value than before", l.Position, c.unit.key.Name())
		}
	}
	if err := r.Split(ctx, c.unit.name, d.To, deadLetters, c.unit.key.Name()); err != nil {
		return nil, err
	}
	return &d, r.Record(ctx, "split", d)
}

// slotOfDeadLetter returns the slot of a dead letter's key. A key of the consumer's own is
// computed from the event. If the event is gone, the stored key decides. If the stored key
// belongs to another unit, as after a change of the key, the first slot is used: such a
// dead letter can only be discarded.
func (c *consumerLoop) slotOfDeadLetter(ctx context.Context, q store.Querier, token string, l progress.KeyedDeadLetter) (int, error) {
	if c.unit.key.Name() == "" {
		return partition.Slot(l.Aggregate), nil
	}
	events, err := c.w.bound.At(token).ReadEvents(ctx, q, l.Position-1, 1)
	if err != nil {
		return 0, fmt.Errorf("read a dead letter: %w", err)
	}
	if len(events) == 0 || events[0].GlobalPosition != l.Position {
		if slot := partition.Slot(l.Key); c.unit.slots.Has(slot) {
			return slot, nil
		}
		return c.unit.slots.First, nil
	}
	return c.unit.slotOf(&events[0])
}

// merge replaces parts by one unit. It returns nil if the parts are at different positions,
// paused, or not all this worker's.
func (c *consumerLoop) merge(ctx context.Context, tx *sql.Tx, into string, target partition.Range, units []string, wanted int) (*progress.Rescaled, error) {
	token := c.progress.Token
	r, ok, err := c.w.checkpoints.Rescale(ctx, tx, c.unit.consumerName, token)
	if !ok || err != nil {
		return nil, err
	}
	parts, err := r.LockParts(ctx, units, wanted)
	if err != nil || !canMerge(target, parts) {
		return nil, err
	}
	open, some, err := r.Open(ctx, units)
	if err != nil {
		return nil, err
	}
	// A part that does not watch a position has passed it as void, or has handled its
	// event. If an event has appeared there by now, the other parts must deliver it.
	appeared, err := reader.Appeared(ctx, c.w.bound.At(token), tx, some)
	if appeared || err != nil {
		return nil, err
	}
	if err := r.Merge(ctx, parts, into, open, c.unit.key.Name(), wanted); err != nil {
		return nil, err
	}
	d := progress.Rescaled{From: units, To: []string{into}, Position: parts[0].Position, Partitions: wanted}
	return &d, r.Record(ctx, "merge", d)
}

// canMerge reports whether the locked parts cover all slots of target. They must also be at
// one position, belong to this worker, have the same scope, and not be paused.
func canMerge(target partition.Range, parts []progress.Part) bool {
	var slots []partition.Range
	for _, p := range parts {
		_, s, ok := partition.Parse(p.Unit)
		if !ok || !p.Mine || p.Paused || p.Position != parts[0].Position || p.Scope != parts[0].Scope {
			return false
		}
		slots = append(slots, s)
	}
	return partition.Tile(target, slots)
}
