package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

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

// FilterDeadLetters lists dead letters of a consumer and its units, or of one unit, in order of
// position. payload asks for Payload and Metadata. limit is 1 to 10,000. With conditions,
// FilterDeadLetters may read all dead letters of the consumer.
func (o *Operator) FilterDeadLetters(ctx context.Context, consumer string, f DeadLetterFilter, payload bool, limit int) ([]DeadLetter, error) {
	query, args := o.deadLettersSQL(consumer, f, payload, limit)
	return read(ctx, &o.core, "list the dead letters of consumer "+errtext.Value(consumer), errtext.Join(checkUnit(consumer), f.check(), checkLimit(limit)), scanDeadLetter, query, args...)
}

func (o *Operator) deadLettersSQL(consumer string, f DeadLetterFilter, payload bool, limit int) (query string, args []any) {
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

// RetryDeadLettersWhere asks for another attempt at dead letters of a consumer, as RetryDeadLetters does
// for one. It takes the first limit dead letters of the filter, and all others of their
// aggregates or keys. limit is 1 to 10,000. RetryDeadLettersWhere returns the number of dead
// letters, and [ErrNoDeadLetter] if the filter selects none. It records one operation for each
// unit, whose detail has the filter and the number.
func (o *Operator) RetryDeadLettersWhere(ctx context.Context, consumer string, f DeadLetterFilter, limit int, by By) (n int64, err error) {
	return o.where(ctx, KindRetry, consumer, f, limit, by, o.sql.retryMany)
}

// DiscardDeadLettersWhere removes the first limit dead letters of a consumer that the filter
// selects. The consumer will not handle their events. limit is 1 to 10,000. DiscardDeadLettersWhere
// returns the number of dead letters, and [ErrNoDeadLetter] if the filter selects none. It records
// one operation for each unit, whose detail has the filter, the number and the positions. The dead
// letters themselves are not kept.
func (o *Operator) DiscardDeadLettersWhere(ctx context.Context, consumer string, f DeadLetterFilter, limit int, by By) (n int64, err error) {
	return o.where(ctx, KindDiscard, consumer, f, limit, by, o.sql.discardMany)
}

// whereDetail is an operation on many dead letters as recorded in the table of operations.
type whereDetail struct {
	Filter      DeadLetterFilter `json:"filter"`
	DeadLetters int64            `json:"letters"`
	Positions   []int64          `json:"positions,omitempty"` // of the discarded dead letters
}

// where changes the first dead letters, by position, that the filter selects in all units.
// change is the statement for the consumer $1 and the positions $2.
func (o *Operator) where(ctx context.Context, kind Kind, consumer string, f DeadLetterFilter, limit int, by By, change string) (n int64, err error) {
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
	err = o.changeUnits(ctx, onConsumer(kind, consumer, by), errtext.Join(f.check(), checkLimit(limit)), choose, func(c consumerTx, at locked) (any, error) {
		positions := found[at.consumer]
		if kind == KindDiscard {
			if err := c.keepEffects(ctx, at, 0); err != nil {
				return nil, err
			}
		}
		list, _ := json.Marshal(positions) // of numbers it does not fail
		rows, err := exec(ctx, c.tx, "change the dead letters", change, at.consumer, "{"+strings.Trim(string(list), "[]")+"}")
		n += rows
		d := whereDetail{Filter: f, DeadLetters: rows}
		if kind == KindDiscard {
			d.Positions = positions
		}
		return d, err
	})
	return orZero(n, err)
}

func (o *Operator) matchingSQL(unit string, f DeadLetterFilter, limit int) (query string, args []any) {
	p := pgdriver.Parameters{Values: []any{unit, limit}}
	query = strings.ReplaceAll(o.sql.matching, "{conditions}", f.where(&p))
	return query, p.Values
}
