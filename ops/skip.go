package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/receipt"
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
	stuck := func(c consumerTx, units []locked) ([]locked, error) {
		if len(units) == 1 || position < 1 {
			return units[:1], nil
		}
		e, err := c.eventAfter(ctx, position-1)
		if err != nil {
			return nil, err
		}
		return unitOf(units, e.AggregateID)
	}
	return o.changeUnits(ctx, onConsumer(KindSkip, consumer, by), nil, stuck, func(c consumerTx, at locked) (detail any, err error) {
		if position > at.position {
			detail, err = c.skipNext(ctx, at, position)
		} else {
			detail, err = c.skipLate(ctx, at, position)
		}
		if err == nil && at.paused == nil {
			err = c.refuseNotStuck(ctx, at.consumer, position)
		}
		return detail, err
	})
}

// refuseNotStuck refuses a position if the unit's worker reports that the unit is not stuck
// there. A worker with a condition but without a position does not know where the unit is
// stuck. Earlier builds do not report it.
func (c consumerTx) refuseNotStuck(ctx context.Context, unit string, position int64) error {
	e := NotStuckError{Position: position}
	var age int64
	err := c.tx.QueryRowContext(ctx, c.sql.notStuck, unit, position).Scan(&e.Worker, &e.Stuck, &age)
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

func (c consumerTx) skipNext(ctx context.Context, at locked, position int64) (d skipDetail, err error) {
	d.From = at.position
	// The settled position is read first: a settled position without an event in a later
	// snapshot is void.
	settled, err := frontier.Settled(ctx, c.tx, sequenced{c.t}, c.t.Settled)
	if err != nil {
		return d, err
	}
	next, err := c.eventAfter(ctx, at.position)
	if err != nil {
		return d, err
	}
	if d.event = next; next.Position != position {
		return d, c.notNext(ctx, at, NotNextError{Position: position})
	}
	if err := c.keepEffects(ctx, at, position); err != nil {
		return d, err
	}
	void := max(min(position-1, settled), at.position)
	if d.Void = void - at.position; d.Void > 0 {
		if err := c.audit(ctx, at.consumer, skipped{at.position + 1, void, d.Void, "void", position}); err != nil {
			return d, err
		}
	}
	if d.Open = position - 1 - void; d.Open > 0 {
		if err := c.audit(ctx, at.consumer, skipped{void + 1, position - 1, d.Open, "open", position}); err != nil {
			return d, err
		}
	}
	if err := receive(ctx, c, at.consumer, receipt.Region{First: at.position + 1, Last: position}); err != nil {
		return d, err
	}
	if err := c.move(ctx, at, position); err != nil {
		return d, err
	}
	return d, receiveSkipped(ctx, c, at, &d.event)
}

// skipLate splits the open range around the position. The position closes as if its event had
// been delivered.
func (c consumerTx) skipLate(ctx context.Context, at locked, position int64) (d skipDetail, err error) {
	d.From, d.Late = at.position, true
	if position < 1 { // no event is there, and the statement's position - 1 might not be a bigint
		return d, c.notNext(ctx, at, NotNextError{Position: position})
	}
	if err := c.keepEffects(ctx, at, 0); err != nil {
		return d, err
	}
	parts, err := exec(ctx, c.tx, "split the open range", c.sql.skipLate, at.consumer, position, uuid.Nil.String())
	switch {
	case err != nil:
		return d, err
	case parts == 0:
		return d, c.notNext(ctx, at, NotNextError{Position: position})
	}
	if d.event, err = c.eventAfter(ctx, position-1); err != nil {
		return d, err
	}
	if d.Position != position {
		return d, c.notNext(ctx, at, NotNextError{Position: position, InDoubt: true})
	}
	return d, receiveSkipped(ctx, c, at, &d.event)
}

// receiveSkipped inserts a skipped event into the receipts, so that it is not missing there. With the
// consumer's own key, the event may be one of another unit, so none is named.
func receiveSkipped(ctx context.Context, c consumerTx, at locked, e *event) error {
	unit := `$1::text`
	if at.key != "" {
		unit = `''`
	}
	_, err := exec(ctx, c.tx, "write its receipt", receipt.InsertEvents(c.t, unit, `SELECT $2::bigint, $3::text::uuid`), at.consumer, e.Position, e.ID.String())
	return err
}

// receive inserts a region into the receipts of a unit, if its consumer has regions.
func receive(ctx context.Context, c consumerTx, unit string, r receipt.Region) error {
	text, err := json.Marshal([]receipt.Row{{Region: r}})
	if err == nil {
		_, err = exec(ctx, c.tx, "write its receipt", `WITH c AS (SELECT partition_key, scope FROM `+c.t.Checkpoints.SQL()+` WHERE consumer_name = $1::text
	AND (receipt IS NOT NULL OR EXISTS (SELECT FROM `+c.t.Receipts.SQL()+` WHERE consumer_name = split_part($1::text, '#', 1) AND event_id IS NULL)))`+receipt.Insert(c.t, "c", "$2"), unit, string(text))
	}
	return err
}

// notNext completes e with the event that the consumer handles next. Late events come first.
func (c consumerTx) notNext(ctx context.Context, at locked, e NotNextError) error {
	next, err := c.firstLate(ctx, at.consumer)
	if err == nil && next.Position == 0 {
		next, err = c.eventAfter(ctx, at.position)
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
func (c consumerTx) eventAfter(ctx context.Context, position int64) (event, error) {
	return scanEvent(c.tx.QueryRowContext(ctx, `
SELECT `+eventColumns+` FROM `+c.t.Events.SQL()+` AS e
WHERE e.`+positionColumn+` > $1::bigint ORDER BY e.`+positionColumn+` LIMIT 1`, position))
}

// firstLate returns the first visible event in the consumer's open ranges.
func (c consumerTx) firstLate(ctx context.Context, consumer string) (event, error) {
	return scanEvent(c.tx.QueryRowContext(ctx, `
SELECT `+eventColumns+`
FROM `+c.t.GapSkips.SQL()+` AS s CROSS JOIN LATERAL (
	SELECT * FROM `+c.t.Events.SQL()+`
	WHERE `+positionColumn+` BETWEEN s.gap_position AND s.gap_end ORDER BY `+positionColumn+` LIMIT 1
) AS e
WHERE s.consumer_name = $1::text AND s.state = 'open'
ORDER BY e.`+positionColumn+` LIMIT 1`, consumer))
}

func scanEvent(row *sql.Row) (e event, err error) {
	err = row.Scan(&e.Position, &e.AggregateType, &e.AggregateID, &e.ID, &e.Type)
	if noRows(err) {
		return event{}, nil
	}
	if err != nil {
		return event{}, fmt.Errorf("read the next event: %w", err)
	}
	return e, nil
}
