package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/scope"
)

// Replay lets a consumer handle all events of one aggregate again that the consumer has passed, in
// order. If the consumer is a [consumer.Forgetter], Forget is called first, in the transaction of
// the first event. [consumer.Delivery] has Replay set for events whose effects the consumer has had.
//
// The events become dead letters, which are handled in a transaction per event. The consumer's
// worker alternates between them and new events. New events of the aggregate wait behind the
// replayed events. DeadLetters lists the replayed events with Replay set; this does not mean that
// they have failed. The aggregate's existing dead letters are retried in their order.
//
// Replay returns [ErrNotFound] if the consumer has passed no event of the aggregate. It returns
// [ErrInvalid] for a consumer with its own key, see [consumer.ByKey], since only the consumer's code
// knows the key. It also returns ErrInvalid for a unit to which the aggregate does not belong.
// Replay does not know which types a consumer names: events of other types become dead letters.
func (o *Operator) Replay(ctx context.Context, consumer, aggregateType, aggregateID string, by By) error {
	invalid := errtext.Join(checkText("aggregateType", aggregateType, maxAggregate), checkText("aggregateID", aggregateID, maxAggregate))
	of := func(c consumerTx, units []locked) ([]locked, error) {
		if err := c.refuseOwnKey(ctx, units[0]); err != nil {
			return nil, err
		}
		units, err := unitOf(units, aggregateID)
		if err != nil {
			return nil, err
		}
		// This also refuses a named unit: another unit reads these events at its own pace.
		if _, slots, _ := partition.Parse(units[0].consumer); !slots.Has(partition.Slot(aggregateID)) {
			return nil, fmt.Errorf("%w: the aggregate is of another unit than %s: name the consumer", ErrInvalid, errtext.Value(units[0].consumer))
		}
		return units, nil
	}
	return o.changeUnits(ctx, onConsumer(KindReplay, consumer, by), invalid, of, func(c consumerTx, at locked) (any, error) {
		if err := c.keepEffects(ctx, at, 0); err != nil {
			return nil, err
		}
		d := replayDetail{AggregateType: aggregateType, AggregateID: aggregateID, To: at.position}
		var err error
		d.Events, err = exec(ctx, c.tx, "put the events among the dead letters", o.sql.replay,
			at.consumer, aggregateType, aggregateID, at.position)
		if err == nil && d.Events == 0 {
			err = errNoEvents
		}
		return d, err
	})
}

// maxAggregate is the maximum length of an aggregate's type or id, in bytes. Both must fit into
// an index.
const maxAggregate = 2_704

// replayDetail is a replay as recorded in the table of operations.
type replayDetail struct {
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`
	To            int64  `json:"to"` // the checkpoint
	Events        int64  `json:"events"`
}

// refuseOwnKey refuses a consumer that keeps events in order by its own key, as far as the
// database knows.
func (c consumerTx) refuseOwnKey(ctx context.Context, at locked) error {
	key, err := keyOf(ctx, c, at)
	if err == nil && key != "" {
		err = fmt.Errorf("%w: the consumer keeps events in order by the key %s, which only its code knows: Reset it, or a unit of it", ErrInvalid, errtext.Value(key))
	}
	return err
}

// maxReplayed is the maximum number of events that ReplayTypes accepts. Each event is one
// transaction, which writes the list of the remaining ones.
const maxReplayed = 5_000

// ReplayTypes lets a consumer handle events that it has passed because its code did not name
// their aggregate types. See [consumer.ScopedConsumer]. The table of operations records these
// types, so no event comes twice. To keep the order within an aggregate, the aggregate's
// handled events are also replayed, as by Replay. Only these have Replay set in
// [consumer.Delivery], unless the consumer is a shadow or was one.
//
// ReplayTypes leaves out events before the consumer's start, and events that the consumer
// passed before version 6 of the tables. It also leaves out events whose positions were in
// doubt when the code changed.
//
// ReplayTypes returns [ErrNotFound] if the consumer has passed no such event. It returns
// [ErrInvalid] if the consumer's code does not name a type, or if there are more than 5,000
// events. It also returns ErrInvalid for a consumer with its own key, which only the consumer's
// code knows. See [consumer.ByKey].
func (o *Operator) ReplayTypes(ctx context.Context, name string, types []string, by By) error {
	var invalid error
	if len(types) == 0 {
		invalid = fmt.Errorf("%w: no type is named", ErrInvalid)
	}
	for _, t := range types {
		invalid = errtext.Join(invalid, checkText("type", t, maxAggregate))
	}
	if name != partition.Consumer(name) {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: %s is a unit: name the consumer", ErrInvalid, errtext.Value(name)))
	}
	missed := map[string][]int64{} // positions, by unit
	choose := func(c consumerTx, units []locked) ([]locked, error) {
		err := c.refuseOwnKey(ctx, units[0])
		if err == nil {
			err = c.checkSelected(ctx, name, types)
		}
		if err != nil {
			return nil, err
		}
		steps, err := c.steps(ctx, name)
		for _, at := range units {
			if err == nil {
				missed[at.consumer], err = c.missed(ctx, at, types, steps)
			}
		}
		units = slices.DeleteFunc(units, func(at locked) bool { return len(missed[at.consumer]) == 0 })
		if err == nil && len(units) == 0 {
			err = errNoneMissed
		}
		return units, err
	}
	return o.changeUnits(ctx, onConsumer(KindReplayTypes, name, by), invalid, choose, func(c consumerTx, at locked) (any, error) {
		return c.giveTypes(ctx, at, types, missed[at.consumer])
	})
}

// errNoneMissed is the errNoEvents of ReplayTypes.
var errNoneMissed = &refusal{errNoEvents, "it has passed no event of these types because its code did not select them: the verb operations of pgfrontier, or Operations, lists the changes (scope)"}

// typesDetail is a ReplayTypes as recorded in the table of operations.
type typesDetail struct {
	scope.Given
	Events int64 `json:"events"` // number of events to deliver
	Missed int   `json:"missed"` // number of these that are delivered for the first time
}

// checkSelected refuses types that the consumer's code does not select.
func (c consumerTx) checkSelected(ctx context.Context, name string, types []string) error {
	rows, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Value[string], `
SELECT coalesce(scope::text, '') FROM `+c.t.Checkpoints.SQL()+` WHERE split_at IS NULL AND (consumer_name = $1::text OR `+unitsOf+`)`, name)
	if err != nil {
		return fmt.Errorf("read what its code selects: %w", err)
	}
	for _, text := range rows {
		if text == "" {
			return fmt.Errorf("%w: it is not known what its code selects: start a worker with this version of the library", ErrInvalid)
		}
		s, err := scope.Parse(text)
		if err != nil {
			return err
		}
		for _, t := range types {
			if !s.Selects(t) {
				return fmt.Errorf("%w: its code selects %s, and not %s: deploy a build that names the type first", ErrInvalid, s.Words(), errtext.Value(t))
			}
		}
	}
	return nil
}

// steps reads the operations since the consumer's start that decided which events were delivered.
// A retirement of what a Rename has left does not end the consumer.
func (c consumerTx) steps(ctx context.Context, name string) (steps []scope.Step, err error) {
	type row struct{ unit, kind, detail string }
	rows, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Columns(func(r *row) []any { return []any{&r.unit, &r.kind, &r.detail} }), `
SELECT consumer_name, operation, coalesce(detail, '{}')::text FROM `+c.t.Operations.SQL()+`
WHERE (consumer_name = $1::text OR `+unitsOf+`) AND operation IN ('shadow', 'begin', 'scope', 'reset', 'repair', 'skip', 'discard', 'replay', 'replay types', 'retire')
	AND detail->>'renamed_to' IS NULL ORDER BY id`, name)
	if err != nil {
		return nil, fmt.Errorf("read what was done to it: %w", err)
	}
	for _, r := range rows {
		if Kind(r.kind) == KindRetire {
			steps = nil // a new consumer of the same name
			continue
		}
		_, slots, _ := partition.Parse(r.unit)
		s := scope.Step{Slots: slots}
		if err := json.Unmarshal([]byte(r.detail), detailOf(&s, Kind(r.kind))); err != nil {
			return nil, fmt.Errorf("read the operation %s on %s: %w", r.kind, errtext.Value(r.unit), err)
		}
		if s.Changed != nil && s.Changed.Position == leftPosition {
			continue // by an old program, on the row that a Rename has left
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// detailOf returns the part of a step that has the detail of an operation.
func detailOf(s *scope.Step, kind Kind) any {
	switch kind {
	case KindShadow, KindBegin: // a shadow begins at position 0
		s.Began = &scope.Began{}
		return s.Began
	case KindScope:
		s.Changed = &scope.Changed{}
		return s.Changed
	case KindSkip, KindDiscard:
		s.Dropped = &scope.Dropped{}
		return s.Dropped
	case KindReplay:
		s.Replayed = &scope.Replayed{}
		return s.Replayed
	case KindReplayTypes:
		s.Given = &scope.Given{}
		return s.Given
	default:
		s.Moved = &scope.Moved{}
		return s.Moved
	}
}

// missed returns the positions of the events of types that a unit has passed without selecting them.
func (c consumerTx) missed(ctx context.Context, at locked, types []string, steps []scope.Step) (positions []int64, err error) {
	named, err := json.Marshal(types)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	_, slots, _ := partition.Parse(at.consumer)
	_, err = pgdriver.QueryAll(ctx, c.tx, func(rows *sql.Rows) (_ struct{}, err error) {
		var e event
		if err := rows.Scan(&e.Position, &e.AggregateType, &e.AggregateID); err != nil {
			return struct{}{}, err
		}
		if slot := partition.Slot(e.AggregateID); slots.Has(slot) && scope.Missed(steps, slot, e.AggregateType, e.Position) {
			positions = append(positions, e.Position)
		}
		if len(positions) > maxReplayed {
			err = fmt.Errorf("%w: it has passed more than %d events: give the types to a consumer of their own that begins with the first event; after a Reset these events would count as a replay", ErrInvalid, maxReplayed)
		}
		return struct{}{}, err
	}, c.sql.missed, at.consumer, string(named), at.position)
	if err != nil {
		return nil, fmt.Errorf("read the events of the types: %w", err)
	}
	return positions, nil
}

// giveTypes adds the aggregates of the missed events to the dead letters.
func (c consumerTx) giveTypes(ctx context.Context, at locked, types []string, missed []int64) (d typesDetail, err error) {
	d = typesDetail{Given: scope.Given{Types: types, To: at.position}, Missed: len(missed)}
	positions, err := json.Marshal(missed)
	if err != nil {
		return d, err
	}
	if err := c.keepEffects(ctx, at, 0, missed...); err != nil {
		return d, err
	}
	d.Events, err = exec(ctx, c.tx, "put the events among the dead letters", c.sql.replayTypes,
		at.consumer, string(positions), at.position)
	return d, err
}
