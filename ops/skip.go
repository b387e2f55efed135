package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
)

// SkipEvent lets a consumer continue without the event at which it is stuck. This event is the
// first above its checkpoint, or a late event. SkipEvent refuses any other event with a
// [NotNextError], which names the next event. If the worker of the consumer reports that the
// consumer is not stuck there, SkipEvent refuses with a [NotStuckError]. The next event may
// then be a good event of the failing batch. If the consumer is paused, or no worker runs it,
// SkipEvent skips the next event without this check.
//
// Positions without an event between the checkpoint and the event are audited. They are void if
// this is proven, otherwise open. An event that appears later at an open position is delivered
// late.
//
// If a consumer is split by its own key, consumer must name the unit.
func (o *Operator) SkipEvent(ctx context.Context, consumer string, position int64, by By) error {
	stuck := func(tx *sql.Tx, units []locked) ([]locked, error) {
		if len(units) == 1 || position < 1 {
			return units[:1], nil
		}
		e, err := o.eventAfter(ctx, tx, position-1)
		if err != nil {
			return nil, err
		}
		return unitOf(units, e)
	}
	return o.changeUnits(ctx, onConsumer(KindSkip, consumer, by), nil, stuck, func(tx *sql.Tx, at locked) (detail any, err error) {
		if position > at.position {
			detail, err = o.skipNext(ctx, tx, at, position)
		} else {
			detail, err = o.skipLate(ctx, tx, at, position)
		}
		if err == nil && at.paused == nil {
			err = o.refuseNotStuck(ctx, tx, at.consumer, position)
		}
		return detail, err
	})
}

// refuseNotStuck refuses a position if the unit's worker reports that the unit is not stuck
// there. A worker with a condition but without a position does not know where the unit is
// stuck. Earlier builds do not report it.
func (o *Operator) refuseNotStuck(ctx context.Context, tx *sql.Tx, unit string, position int64) error {
	e := NotStuckError{Position: position}
	var age int64
	err := tx.QueryRowContext(ctx, o.sql.notStuck, unit, position).Scan(&e.Worker, &e.Stuck, &age)
	switch {
	case noRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("read where it is stuck: %w", err)
	}
	e.Ago = time.Duration(max(age, 0)) * time.Microsecond
	return &e
}

// event is an event as shown, and as recorded if it was skipped.
type event struct {
	Position      int64     `json:"position"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	ID            uuid.UUID `json:"event_id"`
	Type          string    `json:"event_type"`
}

type skipDetail struct {
	event
	From int64 `json:"from"` // the checkpoint before
	Late bool  `json:"late"`
	Void int64 `json:"void"` // positions below the event that became void
	Open int64 `json:"open"` // positions below the event that are in doubt
}

func (o *Operator) skipNext(ctx context.Context, tx *sql.Tx, at locked, position int64) (d skipDetail, err error) {
	d.From = at.position
	// The settled position is read first: a settled position without an event in a later
	// snapshot is void.
	settled, err := frontier.Settled(ctx, tx, sequenced{o.t}, o.t.Settled)
	if err != nil {
		return d, err
	}
	next, err := o.eventAfter(ctx, tx, at.position)
	if err != nil {
		return d, err
	}
	if d.event = next; next.Position != position {
		return d, o.notNext(ctx, tx, at, NotNextError{Position: position})
	}
	if err := o.keepEffects(ctx, tx, at, position); err != nil {
		return d, err
	}
	void := max(min(position-1, settled), at.position)
	if d.Void = void - at.position; d.Void > 0 {
		if err := o.audit(ctx, tx, at.consumer, skipped{at.position + 1, void, d.Void, "void", position}); err != nil {
			return d, err
		}
	}
	if d.Open = position - 1 - void; d.Open > 0 {
		if err := o.audit(ctx, tx, at.consumer, skipped{void + 1, position - 1, d.Open, "open", position}); err != nil {
			return d, err
		}
	}
	return d, o.move(ctx, tx, at.consumer, position)
}

// skipLate splits the open range around the position. The position closes as if its event had
// been delivered.
func (o *Operator) skipLate(ctx context.Context, tx *sql.Tx, at locked, position int64) (d skipDetail, err error) {
	d.From, d.Late = at.position, true
	if position < 1 { // no event is there, and the statement's position - 1 might not be a bigint
		return d, o.notNext(ctx, tx, at, NotNextError{Position: position})
	}
	if err := o.keepEffects(ctx, tx, at, 0); err != nil {
		return d, err
	}
	parts, err := exec(ctx, tx, "split the open range", o.sql.skipLate, at.consumer, position, uuid.Nil.String())
	switch {
	case err != nil:
		return d, err
	case parts == 0:
		return d, o.notNext(ctx, tx, at, NotNextError{Position: position})
	}
	if d.event, err = o.eventAfter(ctx, tx, position-1); err != nil {
		return d, err
	}
	if d.Position != position {
		return d, o.notNext(ctx, tx, at, NotNextError{Position: position, InDoubt: true})
	}
	return d, nil
}

// notNext completes e with the event that the consumer handles next. Late events come first.
func (o *Operator) notNext(ctx context.Context, tx *sql.Tx, at locked, e NotNextError) error {
	next, err := o.firstLate(ctx, tx, at.consumer)
	if err == nil && next.Position == 0 {
		next, err = o.eventAfter(ctx, tx, at.position)
	}
	if err != nil {
		return err
	}
	e.Checkpoint = at.position
	e.Next, e.NextID, e.NextType = next.Position, next.ID, next.Type
	return &e
}

const eventColumns = `e.` + positionColumn + `, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type`

// eventAfter returns the first visible event above a position, or the zero event.
func (o *Operator) eventAfter(ctx context.Context, tx *sql.Tx, position int64) (event, error) {
	return scanEvent(tx.QueryRowContext(ctx, `
SELECT `+eventColumns+` FROM `+o.t.Events.SQL()+` AS e
WHERE e.`+positionColumn+` > $1::bigint ORDER BY e.`+positionColumn+` LIMIT 1`, position))
}

// firstLate returns the first visible event in the consumer's open ranges.
func (o *Operator) firstLate(ctx context.Context, tx *sql.Tx, consumer string) (event, error) {
	return scanEvent(tx.QueryRowContext(ctx, `
SELECT `+eventColumns+`
FROM `+o.t.GapSkips.SQL()+` AS s CROSS JOIN LATERAL (
	SELECT * FROM `+o.t.Events.SQL()+`
	WHERE `+positionColumn+` BETWEEN s.gap_position AND s.gap_end ORDER BY `+positionColumn+` LIMIT 1
) AS e
WHERE s.consumer_name = $1::text AND s.state = 'open'
ORDER BY e.`+positionColumn+` LIMIT 1`, consumer))
}

func scanEvent(row *sql.Row) (e event, err error) {
	err = row.Scan(&e.Position, &e.AggregateType, &e.AggregateID, &e.ID, &e.Type)
	if errors.Is(err, sql.ErrNoRows) {
		return event{}, nil
	}
	if err != nil {
		return event{}, fmt.Errorf("read the next event: %w", err)
	}
	return e, nil
}
