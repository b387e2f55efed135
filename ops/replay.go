package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
)

// Replay lets a consumer handle all events of one aggregate again that it has passed, in
// order. If the consumer is a [consumer.Forgetter], it is called first, in the transaction of the
// first event. [consumer.Delivery] has Replay set for events whose effects it has had.
//
// The events go through the dead letters, a transaction each: the worker that runs the
// consumer takes turns with what is new. New events of the aggregate wait behind them.
// DeadLetters lists them with Replay set. They are dead letters only once one has failed.
// Those that the aggregate has already are tried again in their place.
//
// It returns [ErrNoEvents] if the consumer has passed none, and [ErrInvalid] for a
// consumer with a key of its own, see [consumer.ByKey]: only its code knows the order. So it
// does for a unit that does not have the aggregate. Of a consumer with types, the types are not
// known here: events of others become dead letters.
func (o *Operator) Replay(ctx context.Context, consumer, aggregateType, aggregateID string, by By) error {
	if invalid := errtext.Join(checkText("aggregateType", aggregateType, maxAggregate), checkText("aggregateID", aggregateID, maxAggregate)); invalid != nil {
		return errtext.Of(fmt.Errorf("ops: %s of consumer %s: %w", KindReplay, errtext.Value(consumer), invalid))
	}
	of := func(tx *sql.Tx, units []locked) ([]locked, error) {
		if err := o.keyless(ctx, tx, units[0]); err != nil {
			return nil, err
		}
		units, err := unitOf(units, event{AggregateID: aggregateID})
		if err != nil {
			return nil, err
		}
		// Of a unit that was named, too: another one goes through these events in its own time.
		if _, slots, _ := partition.Parse(units[0].consumer); !slots.Has(partition.Slot(aggregateID)) {
			return nil, fmt.Errorf("%w: the aggregate is of another unit than %s: name the consumer", ErrInvalid, errtext.Value(units[0].consumer))
		}
		return units, nil
	}
	return o.change(ctx, KindReplay, consumer, by, of, func(tx *sql.Tx, at locked) (any, error) {
		if err := o.keepEffects(ctx, tx, at, 0); err != nil {
			return nil, err
		}
		d := replayDetail{AggregateType: aggregateType, AggregateID: aggregateID, To: at.position}
		// What was passed in doubt and has appeared is still to be delivered, late.
		var err error
		d.Events, err = exec(ctx, tx, "put the events among the letters", `
INSERT INTO `+o.t.DeadLetters.SQL()+` AS l (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, retry_at, replay, forget)
SELECT $1::text, e.`+positionColumn+`, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type, 0, clock_timestamp(), true, true
FROM `+o.t.Events.SQL()+` AS e
WHERE e.aggregate_type = $2::text AND e.aggregate_id = $3::text AND e.`+positionColumn+` <= $4::bigint AND NOT EXISTS (
	SELECT FROM `+o.t.GapSkips.SQL()+` AS s
	WHERE s.consumer_name = $1::text AND s.state = 'open' AND s.gap_position <= e.`+positionColumn+` AND s.gap_end >= e.`+positionColumn+`)
ON CONFLICT (consumer_name, global_position) DO UPDATE SET retry_at = excluded.retry_at, replay = true, forget = true, updated_at = clock_timestamp()`,
			at.consumer, aggregateType, aggregateID, at.position)
		if err == nil && d.Events == 0 {
			err = ErrNoEvents
		}
		return d, err
	})
}

// maxAggregate is the longest type or id of an aggregate, in bytes: an index has both.
const maxAggregate = 2_704

// replayDetail is what the table of operations keeps of a replay.
type replayDetail struct {
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`
	To            int64  `json:"to"` // the checkpoint
	Events        int64  `json:"events"`
}

// keyless refuses a consumer that keeps events in order by a key of its own, as far as
// the database knows.
func (o *Operator) keyless(ctx context.Context, tx *sql.Tx, at locked) error {
	key := at.key
	if key == "" {
		err := tx.QueryRowContext(ctx, `
SELECT coalesce(max(partitions->$1::text->>'key'), '') FROM `+o.t.Nodes.SQL(), partition.Consumer(at.consumer)).Scan(&key)
		if err != nil {
			return fmt.Errorf("look for a key of its own: %w", err)
		}
	}
	if key != "" {
		return fmt.Errorf("%w: the consumer keeps events in order by the key %s, which only its code knows: Reset it, or a unit of it", ErrInvalid, errtext.Value(key))
	}
	return nil
}
