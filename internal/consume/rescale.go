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

// rescaleAgain is about the pause after the first split or merge that did not
// happen.
const rescaleAgain = 100 * time.Millisecond

// rescaling is what a loop knows of the layout that is wanted.
type rescaling struct {
	wanted   int    // partitions, at the last look
	target   string // that it is to become a part of; empty: it is none
	bounded  bool
	upTo     int64     // it reads no further, if it is bounded
	attends  time.Time // again, at the latest
	failures int       // of splits and merges, in a row
	due      time.Time
}

// want forgets the failures if another number of partitions is wanted than at the last
// look.
func (r *rescaling) want(n int) {
	if n != r.wanted {
		r.wanted, r.failures, r.due = n, 0, time.Time{}
	}
}

// rescale brings the unit nearer to the layout that the leader wants, between two
// batches. It reports whether the loop is to look again at once: units were
// replaced, or it has waited for other parts.
//
// A step is safe for any worker at any time: it reads all that matters in its own
// transaction. So nothing is remembered here that could be wrong.
func (c *consumerLoop) rescale(intake context.Context) (again bool) {
	wanted := c.w.coord.Wanted(c.unit.name)
	switch {
	case wanted == 0:
		c.leaveMeeting()
		c.rescaling.want(0) // what failed is not to be tried again
		return false
	case c.progress == nil:
		return false // load it first
	}
	c.rescaling.want(wanted)
	children := c.unit.slots.Children(wanted)
	target := partition.Target(wanted, c.unit.slots.First)
	switch {
	case len(children) > 1:
		c.leaveMeeting()
		if time.Now().Before(c.rescaling.due) {
			return false
		}
		return c.try(intake, "split", func(ctx context.Context, tx *sql.Tx) (*progress.Rescaled, error) {
			return c.split(ctx, tx, children, wanted)
		})
	case c.unit.slots == target:
		c.leaveMeeting()
		return false
	}
	return c.meet(intake, target, wanted)
}

// meet takes part in the meeting of the parts of a target, and merges them if it
// is the last that arrives.
func (c *consumerLoop) meet(intake context.Context, target partition.Range, wanted int) (again bool) {
	name := partition.Name(c.unit.title, target)
	if c.rescaling.target != name {
		c.leaveMeeting()
		c.rescaling.target = name
		if c.lazily.upTo > 0 {
			c.forget() // parts meet where their checkpoints are
			return true
		}
	}
	m := &c.w.meetings
	news, dealt := m.changed(), c.w.coord.Changed()
	do := m.attend(name, target, c.unit.name, time.Now(), stand{slots: c.unit.slots, at: c.progress.Position, unready: c.unready()})
	c.rescaling.attends = do.until
	moved := c.bound(do.bounded, do.upTo)
	switch {
	case do.merge:
		parts := m.partsOf(name)
		done := c.try(intake, "merge", func(ctx context.Context, tx *sql.Tx) (*progress.Rescaled, error) {
			return c.merge(ctx, tx, name, target, parts, wanted)
		})
		m.adjourn(name, c.rescaling.due)
		return done
	case do.wait:
		timer := time.NewTimer(time.Until(do.until))
		defer timer.Stop()
		select {
		case <-news:
		case <-dealt:
		case <-timer.C:
		case <-c.unit.reload.c:
		case <-intake.Done():
		}
		c.forget() // perhaps another part has merged them
		return true
	}
	return moved
}

// bound says how far the unit reads, and reports whether that is news: then what
// was polled within the old bound is not all that there is.
func (c *consumerLoop) bound(bounded bool, upTo int64) (news bool) {
	if news = c.rescaling.bounded != bounded || bounded && c.rescaling.upTo != upTo; news {
		c.polled = nil
	}
	c.rescaling.bounded, c.rescaling.upTo = bounded, upTo
	return news
}

// nextLook returns when a loop that waits for news must go on without any: it must
// look again at what is wanted, or write down what it has passed lazily. ok is false
// if it need not.
func (c *consumerLoop) nextLook() (at time.Time, ok bool) {
	switch {
	case c.rescaling.target != "":
		at = c.rescaling.attends
	case c.rescaling.failures > 0:
		at = c.rescaling.due
	}
	if c.lazily.upTo > 0 {
		if due := c.lazily.since.Add(deferLimit(c.unit.slots)); at.IsZero() || due.Before(at) {
			at = due
		}
	}
	return at, !at.IsZero()
}

// unready reports whether the unit has troubles of its own, so that nobody waits
// for it.
func (c *consumerLoop) unready() bool {
	t := &c.tally
	return c.progress.Paused != nil || t.failures > 0 || t.disturbed > 0 || t.bisect.active() || c.poison != nil || c.crowded
}

// leaveMeeting takes note that the unit is not to be merged, or not here.
func (c *consumerLoop) leaveMeeting() {
	if c.rescaling.target != "" {
		c.w.meetings.leave(c.rescaling.target, c.unit.name)
		c.rescaling.target = ""
		c.bound(false, 0)
	}
}

// try runs one split or merge, and reports whether it happened. What fails is tried
// again, after a pause.
func (c *consumerLoop) try(intake context.Context, what string, replace func(ctx context.Context, tx *sql.Tx) (*progress.Rescaled, error)) (done bool) {
	var r *progress.Rescaled
	err := c.inTransaction(intake, func(ctx context.Context, tx *sql.Tx) (err error) {
		r, err = replace(ctx, tx)
		return err
	})
	c.forget() // whether anything happened, the database knows
	c.rescaling.failures++
	if err == nil && r != nil {
		c.rescaling.failures = 0
		c.w.observers.Notify(observe.Rescaled{Consumer: c.unit.title, From: r.From, To: r.To, Position: r.Position})
		c.w.coord.Wake()
	}
	c.rescaling.due = time.Now().Add(backoff.Delay(c.rescaling.failures, rescaleAgain, meetingLimit, rand.Float64()))
	if err != nil {
		err = fmt.Errorf("worker: %s of consumer %q: %w", what, c.unit.name, err)
	}
	c.w.taskFailed(intake, what, c.unit.name, err)
	return err == nil && r != nil
}

// tryLimit is how long a split or a merge may take. It grows from try to try: a unit may
// have many dead letters, whose keys are to be found.
func (c *consumerLoop) tryLimit() time.Duration {
	return c.w.limits.after(max(c.tally.disturbed, c.rescaling.failures))
}

// inTransaction runs a short transaction on a connection of the loops'.
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
		defer func() { _ = tx.Rollback() }() // a no-op after the commit
		return do(ctx, tx)
	})
}

// split puts children in the place of this unit. It returns nil if it was replaced,
// or not to be split any more.
func (c *consumerLoop) split(ctx context.Context, tx *sql.Tx, children []partition.Range, wanted int) (*progress.Rescaled, error) {
	token := c.progress.Token
	r, ok, err := c.w.checkpoints.Rescale(ctx, tx, c.unit.title, token)
	if !ok || err != nil {
		return nil, err
	}
	position, found, ok, err := r.LockUnit(ctx, c.unit.name, wanted)
	if !ok || err != nil {
		return nil, err
	}
	d := progress.Rescaled{From: []string{c.unit.name}, Position: position, Partitions: wanted}
	for _, child := range children {
		d.To = append(d.To, partition.Name(c.unit.title, child))
	}
	letters := map[int64]string{}
	for _, l := range found {
		slot, err := c.slotOfLetter(ctx, tx, token, l)
		if err != nil {
			return nil, err
		}
		for i, child := range children {
			if child.Has(slot) {
				letters[l.Position] = d.To[i]
			}
		}
		if letters[l.Position] == "" {
			return nil, fmt.Errorf("the dead letter at position %d has a key of another unit: the key %q does not return what it did", l.Position, c.unit.key.Name())
		}
	}
	if err := r.Split(ctx, c.unit.name, d.To, letters, c.unit.key.Name()); err != nil {
		return nil, err
	}
	return &d, r.Record(ctx, "split", d)
}

// slotOfLetter returns the slot of a dead letter's key. A key of the consumer's
// own takes the event. If that is gone, the letter's own key has to do, and if that is of
// another unit, as after a change of the key, the first slot: such a letter can only be discarded.
func (c *consumerLoop) slotOfLetter(ctx context.Context, q store.Querier, token string, l progress.KeyedDeadLetter) (int, error) {
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

// merge puts one unit in the place of its parts. It returns nil if they do not
// stand at one position, are not all this worker's, or are paused.
func (c *consumerLoop) merge(ctx context.Context, tx *sql.Tx, into string, target partition.Range, units []string, wanted int) (*progress.Rescaled, error) {
	token := c.progress.Token
	r, ok, err := c.w.checkpoints.Rescale(ctx, tx, c.unit.title, token)
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
	// A part that does not watch a position has passed it as void, or has handled
	// its event. If there is one by now, it is for the other parts to deliver.
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

// canMerge reports whether locked parts have all slots of a target, stand at one
// position, are this worker's, select the same, and run.
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
