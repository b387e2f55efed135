package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/receipt"
)

// deadLetterOps are the operations on dead letters.
type deadLetterOps struct{ *consumerCore }

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
	Error         string     // of the last attempt; empty: not tried yet
	Attempts      int        // 0: not tried yet
	Replay        bool       // it waits for the replay of its aggregate, and has not failed
	RetryAt       *time.Time // when the pending retry was asked for; nil: no retry is pending
	CreatedAt     time.Time
	UpdatedAt     time.Time
	// Payload and Metadata are the event's, if the caller asked for them. They are nil if the
	// event is no longer in the log.
	Payload  []byte
	Metadata json.RawMessage
}

// DeadLetterFilter selects dead letters of a consumer. The zero DeadLetterFilter selects all of them.
type DeadLetterFilter struct {
	AggregateType string        `json:"aggregate_type,omitempty"` // empty: all
	EventType     string        `json:"event_type,omitempty"`     // empty: all
	Error         string        `json:"error,omitempty"`          // a part of the error; empty: all, also without an error
	OlderThan     time.Duration `json:"older_than,omitempty"`     // by the database's clock; 0: all
	After         int64         `json:"after,omitempty"`          // only those above this position; for the next page, the last position of this page
}

func (f DeadLetterFilter) check() error {
	var all []error
	for what, text := range map[string]string{"AggregateType": f.AggregateType, "EventType": f.EventType, "Error": f.Error} {
		if text != "" {
			all = append(all, checkText("DeadLetterFilter."+what, text, maxFilter))
		}
	}
	if f.OlderThan < 0 || f.After < 0 {
		all = append(all, fmt.Errorf("%w: DeadLetterFilter.OlderThan is %v and After %d, neither may be below 0", ErrInvalid, f.OlderThan, f.After))
	}
	return errtext.Join(all...)
}

const maxFilter = 2_704 // bytes, as an aggregate type may have

// where returns the conditions of the filter for l.
func (f DeadLetterFilter) where(p *pgdriver.Parameters) string {
	return pgdriver.And(p, "l.aggregate_type = %s", "text", f.AggregateType) +
		pgdriver.And(p, "l.event_type = %s", "text", f.EventType) +
		pgdriver.And(p, "strpos(coalesce(l.error, ''), %s) > 0", "text", f.Error) +
		pgdriver.And(p, "l.created_at < statement_timestamp() - %s * interval '1 microsecond'", "bigint", f.OlderThan.Microseconds()) +
		pgdriver.And(p, "l.global_position > %s", "bigint", f.After)
}

// DeadLetters lists the dead letters of a consumer, in order of position. If consumer is empty,
// DeadLetters lists the dead letters of all consumers, in order of name.
func (o *deadLetterOps) DeadLetters(ctx context.Context, consumer string) ([]DeadLetter, error) {
	const what = "list the dead letters"
	if consumer == "" {
		return read(ctx, &o.core, what, nil, scanDeadLetter, o.sql.allDeadLetters)
	}
	query, args := o.deadLettersSQL(consumer, DeadLetterFilter{}, false, math.MaxInt)
	return read(ctx, &o.core, what, checkConsumer(consumer), scanDeadLetter, query, args...)
}

// FilterDeadLetters lists dead letters of a consumer and its units, or of one unit, in order of
// position. payload asks for Payload and Metadata. limit is 1 to 10,000. With conditions,
// FilterDeadLetters may read all dead letters of the consumer.
func (o *deadLetterOps) FilterDeadLetters(ctx context.Context, consumer string, f DeadLetterFilter, payload bool, limit int) ([]DeadLetter, error) {
	query, args := o.deadLettersSQL(consumer, f, payload, limit)
	return read(ctx, &o.core, "list the dead letters of consumer "+errtext.Value(consumer), errtext.Join(checkUnit(consumer), f.check(), checkLimit(limit, maxJobs)), scanDeadLetter, query, args...)
}

func (o *deadLetterOps) deadLettersSQL(consumer string, f DeadLetterFilter, payload bool, limit int) (query string, args []any) {
	p := pgdriver.Parameters{Values: []any{consumer, limit}}
	conditions := f.where(&p)
	columns, join := `NULL::bytea, NULL::text`, ``
	if payload {
		columns, join = `e.payload, e.metadata::text`, "\n"+o.sql.event
	}
	return strings.NewReplacer("{conditions}", conditions, "{payload}", columns, "{event}", join).Replace(o.sql.deadLetters), p.Values
}

func scanDeadLetter(rows *sql.Rows) (l DeadLetter, err error) {
	err = rows.Scan(&l.Consumer, &l.Position, &l.AggregateType, &l.AggregateID, &l.Key, &l.EventID, &l.EventType, pgdriver.OrZero(&l.Error), &l.Attempts,
		&l.Replay, pgdriver.UTCOrNil(&l.RetryAt), pgdriver.UTC(&l.CreatedAt), pgdriver.UTC(&l.UpdatedAt), &l.Payload, pgdriver.RawJSON(&l.Metadata))
	if name, slots, ok := partition.Parse(l.Consumer); ok {
		l.Consumer, l.Partition = name, slots.String()
	}
	return l, err
}

// RetryDeadLetters asks for another attempt at the dead letter at a position. It includes all
// others of the same aggregate or key, since they are handled in order. The consumer's worker
// removes the dead letters that succeed. At the first failure, the worker withdraws the request
// and stores the new error. RetryDeadLetters returns [ErrNoDeadLetter] if there is no dead
// letter at the position.
func (o *deadLetterOps) RetryDeadLetters(ctx context.Context, consumer string, position int64, by By) error {
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
func (o *deadLetterOps) DiscardDeadLetter(ctx context.Context, consumer string, position int64, by By) error {
	with := func(c consumerTx, units []locked) ([]locked, error) { return c.withDeadLetter(ctx, units, position) }
	return o.changeUnits(ctx, onConsumer(KindDiscard, consumer, by), nil, with, func(c consumerTx, at locked) (any, error) {
		l, err := c.deadLetter(ctx, at.consumer, position)
		if err != nil {
			return nil, err
		}
		if err := c.keepEffects(ctx, at, 0); err != nil {
			return nil, err
		}
		if err := receiveDiscarded(ctx, c, at.consumer, []int64{position}); err != nil {
			return nil, err
		}
		_, err = exec(ctx, c.tx, "discard the dead letter", `
DELETE FROM `+o.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text AND global_position = $2::bigint`, at.consumer, position)
		return l, err
	})
}

// RetryDeadLettersWhere asks for another attempt at dead letters of a consumer, as RetryDeadLetters does
// for one. It takes the first limit dead letters of the filter, and all others of their
// aggregates or keys. limit is 1 to 10,000. RetryDeadLettersWhere returns the number of dead
// letters, and [ErrNoDeadLetter] if the filter selects none. It records one operation per unit that
// has some of them, whose detail has the filter and the number.
func (o *deadLetterOps) RetryDeadLettersWhere(ctx context.Context, consumer string, f DeadLetterFilter, limit int, by By) (n int64, err error) {
	return o.where(ctx, KindRetry, consumer, f, limit, by, o.sql.retryMany)
}

// DiscardDeadLettersWhere removes the first limit dead letters of a consumer that the filter
// selects. The consumer will not handle their events. limit is 1 to 10,000. DiscardDeadLettersWhere
// returns the number of dead letters, and [ErrNoDeadLetter] if the filter selects none. It records
// one operation per unit that has some of them, whose detail has the filter, the number and the
// positions. The dead letters themselves are not kept.
func (o *deadLetterOps) DiscardDeadLettersWhere(ctx context.Context, consumer string, f DeadLetterFilter, limit int, by By) (n int64, err error) {
	return o.where(ctx, KindDiscard, consumer, f, limit, by, o.sql.discardMany)
}

// where changes the first dead letters, by position, that the filter selects in all units.
// change is the statement for the consumer $1 and the positions $2.
func (o *deadLetterOps) where(ctx context.Context, kind Kind, consumer string, f DeadLetterFilter, limit int, by By, change string) (n int64, err error) {
	var found map[string][]int64
	choose := func(c consumerTx, units []locked) (with []locked, err error) {
		found, n = map[string][]int64{}, 0
		var all []int64
		for _, at := range units {
			query, args := o.matchingSQL(at.consumer, f, limit)
			positions, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Value[int64], query, args...)
			if err != nil {
				return nil, fmt.Errorf("select the dead letters: %w", err)
			}
			found[at.consumer], all = positions, append(all, positions...)
		}
		slices.Sort(all) // no two units have one position
		for _, at := range units {
			found[at.consumer] = slices.DeleteFunc(found[at.consumer], func(p int64) bool { return len(all) > limit && p >= all[limit] })
			if len(found[at.consumer]) > 0 {
				with = append(with, at)
			}
		}
		if len(with) == 0 {
			return nil, fmt.Errorf("the filter selects none: %w", ErrNoDeadLetter)
		}
		return with, nil
	}
	err = o.changeUnits(ctx, onConsumer(kind, consumer, by), errtext.Join(f.check(), checkLimit(limit, maxJobs)), choose, func(c consumerTx, at locked) (any, error) {
		positions := found[at.consumer]
		if kind == KindDiscard {
			err := c.keepEffects(ctx, at, 0)
			if err == nil {
				err = receiveDiscarded(ctx, c, at.consumer, positions)
			}
			if err != nil {
				return nil, err
			}
		}
		rows, err := exec(ctx, c.tx, "change the dead letters", change, at.consumer, listOf(positions))
		n += rows
		d := whereDetail{Filter: f, DeadLetters: rows}
		if kind == KindDiscard {
			d.Positions = positions
		}
		return d, err
	})
	return orZero(n, err)
}

// listOf returns positions as the text of an array.
func listOf(positions []int64) string {
	list, _ := json.Marshal(positions) // of numbers it does not fail
	return "{" + strings.Trim(string(list), "[]") + "}"
}

// receiveDiscarded inserts dead letters that are discarded into the receipts, so that their events are
// not missing there.
func receiveDiscarded(ctx context.Context, c consumerTx, unit string, positions []int64) error {
	_, err := exec(ctx, c.tx, "write its receipt", receipt.InsertEvents(c.t, `$1::text`, `SELECT global_position, event_id FROM `+c.t.DeadLetters.SQL()+`
		WHERE consumer_name = $1::text AND NOT received AND global_position = ANY (ARRAY(SELECT unnest($2::text::bigint[])))`), unit, listOf(positions))
	return err
}

func (o *deadLetterOps) matchingSQL(unit string, f DeadLetterFilter, limit int) (query string, args []any) {
	p := pgdriver.Parameters{Values: []any{unit, limit}}
	query = strings.ReplaceAll(o.sql.matching, "{conditions}", f.where(&p))
	return query, p.Values
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

// whereDetail is an operation on many dead letters as recorded in the table of operations.
type whereDetail struct {
	Filter      DeadLetterFilter `json:"filter"`
	DeadLetters int64            `json:"letters"`
	Positions   []int64          `json:"positions,omitempty"` // of the discarded dead letters
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

// withDeadLetter returns the unit that has a dead letter at a position.
func (c consumerTx) withDeadLetter(ctx context.Context, units []locked, position int64) ([]locked, error) {
	for i, u := range units {
		_, err := c.deadLetter(ctx, u.consumer, position)
		if err == nil {
			return units[i : i+1], nil
		} else if !errors.Is(err, ErrNoDeadLetter) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("position %d: %w", position, ErrNoDeadLetter)
}
