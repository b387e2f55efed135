package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// DeadLetter is an event that a consumer could not handle. Later events of the same aggregate
// wait behind it as dead letters. For a consumer with its own key, see [consumer.ByKey], the
// events have the same key.
type DeadLetter struct {
	Consumer      string
	Partition     string // part of a split consumer, as in [consumer.Delivery]; empty: it is not split
	Position      int64
	AggregateType string
	AggregateID   string
	Key           string // the consumer's own key; empty: it has none, and the aggregate keeps the order
	EventID       uuid.UUID
	EventType     string
	Error         string     // of the last attempt; empty: never tried
	Attempts      int        // 0: never tried
	Replay        bool       // it waits for the replay of its aggregate, and has not failed
	RetryAt       *time.Time // when the pending retry was asked for; nil: no retry is pending
	CreatedAt     time.Time
	UpdatedAt     time.Time
	// Payload and Metadata are the event's, if the caller asked for them. They are nil if the
	// event is no longer in the log.
	Payload  []byte
	Metadata json.RawMessage
}

// DeadLetters lists the dead letters of a consumer, in order of position. If consumer is empty,
// DeadLetters lists the dead letters of all consumers, in order of name.
func (o *Operator) DeadLetters(ctx context.Context, consumer string) ([]DeadLetter, error) {
	const what = "list the dead letters"
	if consumer == "" {
		return read(ctx, &o.core, what, nil, scanDeadLetter, o.sql.allDeadLetters)
	}
	query, args := o.deadLettersSQL(consumer, DeadLetterFilter{}, false, math.MaxInt)
	return read(ctx, &o.core, what, checkConsumer(consumer), scanDeadLetter, query, args...)
}

// RetryDeadLetters asks for another attempt at the dead letter at a position. It includes all
// others of the same aggregate or key, since they are handled in order. The consumer's worker
// removes the dead letters that succeed. At the first failure, the worker withdraws the request
// and stores the new error. RetryDeadLetters returns [ErrNoDeadLetter] if there is no dead
// letter at the position.
func (o *Operator) RetryDeadLetters(ctx context.Context, consumer string, position int64, by By) error {
	with := func(c consumerTx, units []locked) ([]locked, error) { return c.withDeadLetter(ctx, units, position) }
	return o.changeUnits(ctx, onConsumer(KindRetry, consumer, by), nil, with, func(c consumerTx, at locked) (any, error) {
		l, err := c.deadLetter(ctx, at.consumer, position)
		if err != nil {
			return nil, err
		}
		n, err := exec(ctx, c.tx, "ask for a retry", `
UPDATE `+o.t.DeadLetters.SQL()+` SET retry_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE consumer_name = $1::text AND (order_type, order_id) = (
	SELECT order_type, order_id FROM `+o.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text AND global_position = $2::bigint)`, at.consumer, position)
		return retryDetail{event: l.event, DeadLetters: n}, err
	})
}

// DiscardDeadLetter removes the dead letter at a position. The consumer will not handle its
// event. The operation's detail keeps the dead letter. DiscardDeadLetter returns
// [ErrNoDeadLetter] if there is no dead letter at the position.
func (o *Operator) DiscardDeadLetter(ctx context.Context, consumer string, position int64, by By) error {
	with := func(c consumerTx, units []locked) ([]locked, error) { return c.withDeadLetter(ctx, units, position) }
	return o.changeUnits(ctx, onConsumer(KindDiscard, consumer, by), nil, with, func(c consumerTx, at locked) (any, error) {
		l, err := c.deadLetter(ctx, at.consumer, position)
		if err != nil {
			return nil, err
		}
		if err := c.keepEffects(ctx, at, 0); err != nil {
			return nil, err
		}
		_, err = exec(ctx, c.tx, "discard the dead letter", `
DELETE FROM `+o.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text AND global_position = $2::bigint`, at.consumer, position)
		return l, err
	})
}

// deadLetter is a dead letter as recorded in the table of operations.
type deadLetter struct {
	event
	Error    string `json:"error"`
	Attempts int    `json:"attempts"`
}

type retryDetail struct {
	event
	DeadLetters int64 `json:"letters"` // of the aggregate or key
}

func (c consumerTx) deadLetter(ctx context.Context, consumer string, position int64) (l deadLetter, err error) {
	err = c.tx.QueryRowContext(ctx, `
SELECT global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts
FROM `+c.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text AND global_position = $2::bigint`, consumer, position).
		Scan(&l.Position, &l.AggregateType, &l.AggregateID, &l.ID, &l.Type, pgdriver.OrZero(&l.Error), &l.Attempts)
	switch {
	case noRows(err):
		return l, fmt.Errorf("position %d: %w", position, ErrNoDeadLetter)
	case err != nil:
		return l, fmt.Errorf("read the dead letter at position %d: %w", position, err)
	}
	return l, nil
}
