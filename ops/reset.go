package ops

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/receipt"
)

// Reset sets a consumer to a position. The consumer continues with the first event above it.
//
// Backwards, the events above the position are handled again. The handler's earlier changes are
// not undone: [consumer.Delivery] has Replay set for events whose effects the consumer has had.
// The consumer's dead letters above the position are deleted. So are its records of positions
// in doubt above it; the consumer finds these again. The operation's detail has the number of
// events to handle again, or 100,000 if there are more. If the consumer names types, the number
// includes events of other types.
//
// Forwards, the events up to the position are not handled. The position may not exceed the
// settled position, since events that appear below the position later would be lost. A
// [NotSettledError] has the settled position. Positions in doubt that the consumer has passed
// stay, and so do its dead letters. The operation's detail has the number of crossed events.
// The audit of skipped positions records the positions without an event, under the nil worker.
//
// Backwards, a split consumer resets all units above the position. Forwards, the position must
// be above that of all units. consumer may also name one unit.
func (o *Operator) Reset(ctx context.Context, consumer string, to int64, by By) error {
	moved := func(_ consumerTx, units []locked) ([]locked, error) {
		if to < 0 {
			return nil, fmt.Errorf("%w: position %d is below 0, which is the beginning", ErrInvalid, to)
		}
		if to <= furthest(units) { // backwards: units below the position stay
			units = slices.DeleteFunc(units, func(at locked) bool { return at.position <= to })
		}
		if len(units) == 0 {
			return nil, fmt.Errorf("%w: %d", errAtPosition, to)
		}
		return units, nil
	}
	return o.changeUnits(ctx, onConsumer(KindReset, consumer, by), nil, moved, func(c consumerTx, at locked) (detail any, err error) {
		switch {
		case to < at.position:
			detail, err = c.back(ctx, at, to)
		default:
			detail, err = c.forward(ctx, at, to)
		}
		if err == nil {
			err = c.move(ctx, at, to)
		}
		return detail, err
	})
}

// move sets the position, and ends the region of the unit's receipt. Backwards, it deletes the receipts
// of the events that are handled again, also those of former units.
func (c consumerTx) move(ctx context.Context, at locked, to int64) error {
	var err error
	if to > at.position {
		_, err = exec(ctx, c.tx, "end the region of its receipt", receipt.End(c.t, `consumer_name = $1::text`), at.consumer)
	} else {
		_, err = exec(ctx, c.tx, "delete the receipts above the position", `
DELETE FROM `+c.t.Receipts.SQL()+` WHERE consumer_name = split_part($1::text, '#', 1) AND last_position > $2::bigint
	AND unit <> '' AND (unit = $1::text OR unit NOT IN (SELECT consumer_name FROM `+c.t.Checkpoints.SQL()+` WHERE split_at IS NULL))`, at.consumer, to)
	}
	if err == nil {
		_, err = exec(ctx, c.tx, "move the checkpoint", `
UPDATE `+c.t.Checkpoints.SQL()+` SET last_position = $2::bigint, receipt = NULL WHERE consumer_name = $1::text`, at.consumer, to)
	}
	return err
}

type backDetail struct {
	From        int64 `json:"from"`
	To          int64 `json:"to"`
	OpenRanges  int64 `json:"open_ranges_forgotten"`
	DeadLetters int64 `json:"dead_letters_deleted"`
	Events      int64 `json:"events_again"`
}

// maxCounted bounds the count of events, since the consumer waits for it.
const maxCounted = 100_000

// back deletes the records of positions above to. Of an open range that contains to, the lower
// part stays.
func (c consumerTx) back(ctx context.Context, at locked, to int64) (d backDetail, err error) {
	d = backDetail{From: at.position, To: to}
	if err := c.keepEffects(ctx, at, 0); err != nil {
		return d, err
	}
	if err := c.tx.QueryRowContext(ctx, `
SELECT count(*) FROM (
	SELECT FROM `+c.t.Events.SQL()+` WHERE `+positionColumn+` > $1::bigint AND `+positionColumn+` <= $2::bigint LIMIT $3::int
) AS again`, to, at.position, maxCounted).Scan(&d.Events); err != nil {
		return d, fmt.Errorf("count the events in (%d, %d]: %w", to, at.position, err)
	}
	if d.OpenRanges, err = exec(ctx, c.tx, "forget the open ranges above the position", `
DELETE FROM `+c.t.GapSkips.SQL()+` WHERE consumer_name = $1::text AND state = 'open' AND gap_position > $2::bigint`, at.consumer, to); err != nil {
		return d, err
	}
	if _, err = exec(ctx, c.tx, "cut the open range at the position", `
UPDATE `+c.t.GapSkips.SQL()+` SET gap_end = $2::bigint, missing = $2::bigint - gap_position + 1
WHERE consumer_name = $1::text AND state = 'open' AND gap_position <= $2::bigint AND gap_end > $2::bigint`, at.consumer, to); err != nil {
		return d, err
	}
	d.DeadLetters, err = exec(ctx, c.tx, "delete the dead letters above the position", `
DELETE FROM `+c.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text AND global_position > $2::bigint`, at.consumer, to)
	return d, err
}

type forwardDetail struct {
	From    int64 `json:"from"`
	To      int64 `json:"to"`
	Settled int64 `json:"settled"`
	Events  int64 `json:"events_crossed"`
	Void    int64 `json:"void"`
}

// forward counts the positions between the checkpoint and to, and audits those without an event. The
// settled position is read first: a settled position without an event in a later snapshot is void.
func (c consumerTx) forward(ctx context.Context, at locked, to int64) (d forwardDetail, err error) {
	d = forwardDetail{From: at.position, To: to}
	if d.Settled, err = frontier.Settled(ctx, c.tx, sequenced{c.t}, c.t.Settled); err != nil {
		return d, err
	}
	if to > d.Settled {
		return d, &NotSettledError{To: to, Settled: d.Settled}
	}
	var first, last int64
	if d.Events, first, last, err = c.cross(ctx, at.position, to); err != nil {
		return d, err
	}
	if err := c.keepEffects(ctx, at, to); err != nil {
		return d, err
	}
	if d.Void = to - at.position - d.Events; d.Void > 0 {
		err = c.audit(ctx, at.consumer, skipped{first, last, d.Void, "void", to})
	}
	return d, err
}

// cross returns how many positions in (from, to] have an event, and the first and the last
// position without one.
func (c consumerTx) cross(ctx context.Context, from, to int64) (events, first, last int64, err error) {
	var highest int64 // with an event
	err = c.tx.QueryRowContext(ctx, `
SELECT count(*), coalesce(min(previous + 1) FILTER (WHERE p > previous + 1), 0), coalesce(max(p - 1) FILTER (WHERE p > previous + 1), 0), coalesce(max(p), $1::bigint)
FROM (
	SELECT p, lag(p, 1, $1::bigint) OVER (ORDER BY p) AS previous
	FROM (
		SELECT `+positionColumn+`::bigint AS p FROM `+c.t.Events.SQL()+`
		WHERE `+positionColumn+` > $1::bigint AND `+positionColumn+` <= $2::bigint
	) AS positions
) AS steps`, from, to).Scan(&events, &first, &last, &highest)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read the events in (%d, %d]: %w", from, to, err)
	}
	if highest < to {
		last = to
		if first == 0 {
			first = highest + 1
		}
	}
	return events, first, last, nil
}

// skipped are positions without an event that an operation crosses.
type skipped struct {
	first, last, missing int64
	state                string // "void" or "open"
	to                   int64  // the new checkpoint
}

// audit records the skipped positions under the nil worker, since an operator is not a worker.
func (c consumerTx) audit(ctx context.Context, consumer string, s skipped) error {
	_, err := exec(ctx, c.tx, "audit the positions without an event", `
INSERT INTO `+c.t.GapSkips.SQL()+` (consumer_name, worker_id, gap_position, gap_end, missing, state,
	skip_to_position, highest_visible_position, first_seen_at, closed_at)
SELECT $1::text, $2::uuid, $3::bigint, $4::bigint, $5::bigint, $6::text, $7::bigint,
	greatest($7::bigint, (SELECT max(`+positionColumn+`) FROM `+c.t.Events.SQL()+`)),
	clock_timestamp(), CASE WHEN $6::text <> 'open' THEN clock_timestamp() END`,
		consumer, uuid.Nil.String(), s.first, s.last, s.missing, s.state, s.to)
	return err
}
