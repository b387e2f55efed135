package partitions

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
)

// Replace runs the split or merge of a step in tx, and commits tx. token is the incarnation
// of the loaded progress. Replace returns nil if the units were already replaced, or are
// not to be replaced as they are now.
func (r *Rescaling) Replace(ctx context.Context, tx *sql.Tx, token string, s Step) (*progress.Rescaled, error) {
	if s.children != nil {
		return r.unit.Split(ctx, tx, token, s.children, r.wanted)
	}
	return r.unit.Merge(ctx, tx, token, s.target, s.parts, r.wanted)
}

// Split replaces the unit by children. It returns nil if the unit was already replaced, or
// need not be split any more.
func (u *Unit) Split(ctx context.Context, tx *sql.Tx, token string, children []partition.Range, wanted int) (*progress.Rescaled, error) {
	r, ok, err := u.Checkpoints.Rescale(ctx, tx, u.Consumer, token)
	if !ok || err != nil {
		return nil, err
	}
	position, found, ok, err := r.LockUnit(ctx, u.Name, wanted)
	if !ok || err != nil {
		return nil, err
	}
	d := progress.Rescaled{From: []string{u.Name}, Position: position, Partitions: wanted}
	for _, child := range children {
		d.To = append(d.To, partition.Name(u.Consumer, child))
	}
	deadLetters := map[int64]string{}
	for _, l := range found {
		slot, err := u.SlotOfDeadLetter(ctx, tx, token, l)
		if err != nil {
			return nil, err
		}
		for i, child := range children {
			if child.Has(slot) {
				deadLetters[l.Position] = d.To[i]
			}
		}
		if deadLetters[l.Position] == "" {
			return nil, fmt.Errorf("the dead letter at position %d has a key of another unit: the key %q returns another value than before", l.Position, u.Key.Name())
		}
	}
	if err := r.Split(ctx, u.Name, d.To, deadLetters, u.Key.Name()); err != nil {
		return nil, err
	}
	return &d, r.Record(ctx, "split", d)
}

// SlotOfDeadLetter returns the slot of a dead letter's key. A key of the consumer's own is
// computed from the event. If the event is gone, the stored key decides. If the stored key
// belongs to another unit, as after a change of the key, the first slot is used: such a
// dead letter can only be discarded.
func (u *Unit) SlotOfDeadLetter(ctx context.Context, q store.Querier, token string, l progress.KeyedDeadLetter) (int, error) {
	if u.Key.Name() == "" {
		return partition.Slot(l.Aggregate), nil
	}
	events, err := u.Log.At(token).ReadEvents(ctx, q, l.Position-1, 1)
	if err != nil {
		return 0, fmt.Errorf("read a dead letter: %w", err)
	}
	if len(events) == 0 || events[0].GlobalPosition != l.Position {
		if slot := partition.Slot(l.Key); u.Slots.Has(slot) {
			return slot, nil
		}
		return u.Slots.First, nil
	}
	return u.Key.SlotOf(&events[0])
}

// Merge replaces parts by one unit of target's slots. It returns nil if the parts are at
// different positions, paused, or not all this worker's.
func (u *Unit) Merge(ctx context.Context, tx *sql.Tx, token string, target partition.Range, units []string, wanted int) (*progress.Rescaled, error) {
	into := partition.Name(u.Consumer, target)
	r, ok, err := u.Checkpoints.Rescale(ctx, tx, u.Consumer, token)
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
	appeared, err := reader.Appeared(ctx, u.Log.At(token), tx, some)
	if appeared || err != nil {
		return nil, err
	}
	if err := r.Merge(ctx, parts, into, open, u.Key.Name(), wanted); err != nil {
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
