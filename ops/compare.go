package ops

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Comparison asks whether two consumers have made the same rows, see [Operator.Compare].
type Comparison struct {
	Old, New string // the consumers
	// OldRows and NewRows are queries of what the consumers have made, with columns of the same names
	// and types. Leave out columns that differ from run to run, such as serial numbers.
	OldRows, NewRows string
}

// Compared is the result of a Comparison. The rows are the same if OnlyOld and OnlyNew are empty.
// They have 100 rows at most, as JSON.
type Compared struct {
	Position         int64 // up to which both consumers have handled all events
	OnlyOld, OnlyNew []string
}

// Compare compares the rows of two consumers, such as two versions of a projection, in one snapshot
// in which both have handled the same events. It takes no lock. It tries again, until ctx ends,
// while one of the consumers has an event to handle that the other has handled, or a dead letter.
// If they do not keep up, pause the one ahead.
//
// The snapshot lasts as long as the two queries. Compare returns [ErrInvalid] for a query that the
// server refuses.
func (o *versionOps) Compare(ctx context.Context, c Comparison) (found Compared, err error) {
	err = c.check()
	if err == nil {
		err = untilReady(ctx, 0, func() error {
			found, err = o.compare(ctx, c)
			return err
		})
	}
	if err != nil {
		return Compared{}, o.fail("compare two consumers", err)
	}
	return found, nil
}

func (c Comparison) check() error {
	var all []error
	for field, name := range map[string]string{"Old": c.Old, "New": c.New} {
		if err := checkConsumer(name); err != nil {
			all = append(all, fmt.Errorf("%s: %w", field, err))
		}
	}
	for field, query := range map[string]string{"OldRows": c.OldRows, "NewRows": c.NewRows} {
		if strings.TrimSpace(query) == "" {
			all = append(all, fmt.Errorf("%w: %s is empty: give a query of the consumer's rows", ErrInvalid, field))
		}
	}
	return errtext.Join(all...)
}

func (o *versionOps) compare(ctx context.Context, c Comparison) (found Compared, err error) {
	tx, err := o.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return found, err
	}
	defer func() { _ = tx.Rollback() }() // the transaction has only read
	if err := pgdriver.WithoutJIT(ctx, tx); err != nil {
		return found, err
	}
	if found.Position, err = samePosition(ctx, o.in(tx), c.Old, c.New); err != nil {
		return found, err
	}
	return found, readDifferences(ctx, tx, c, &found)
}

// samePosition returns the position up to which both consumers have handled all events that are
// visible. It returns a *notYet if there is none.
func samePosition(ctx context.Context, c consumerTx, consumers ...string) (int64, error) {
	var low, high int64
	for i, name := range consumers {
		var first, last int64
		err := c.tx.QueryRowContext(ctx, `
SELECT coalesce(min(last_position), -1), coalesce(max(last_position), -1) FROM `+c.t.Checkpoints.SQL()+`
WHERE (consumer_name = $1::text OR `+unitsOf+`) AND split_at IS NULL`, name).Scan(&first, &last)
		if err != nil {
			return 0, fmt.Errorf("read the position of %s: %w", errtext.Value(name), err)
		}
		if last < 0 {
			return 0, fmt.Errorf("%s: %w", errtext.Value(name), errNoCheckpoint)
		}
		if err := refuseRenamed(ctx, c, name, last); err != nil {
			return 0, fmt.Errorf("%s: %w", errtext.Value(name), err)
		}
		if i == 0 {
			low = first
		}
		low, high = min(low, first), max(high, last)
	}
	for _, name := range consumers {
		var position int64
		err := c.tx.QueryRowContext(ctx, `
SELECT coalesce((SELECT min(global_position) FROM (
	SELECT e.global_position FROM `+c.t.GapSkips.SQL()+` AS s JOIN `+c.t.Events.SQL()+` AS e ON e.global_position BETWEEN s.gap_position AND s.gap_end
	WHERE (s.consumer_name = $1::text OR `+unitsOf+`) AND s.state = 'open'
	UNION ALL SELECT global_position FROM `+c.t.DeadLetters.SQL()+` WHERE consumer_name = $1::text OR `+unitsOf+`
	UNION ALL (SELECT global_position FROM `+c.t.Events.SQL()+` WHERE global_position > $2::bigint AND global_position <= $3::bigint ORDER BY global_position LIMIT 1)
) AS unhandled), 0)`, name, low, high).Scan(&position)
		if err != nil {
			return 0, fmt.Errorf("read what is to be handled: %w", err)
		}
		if position > 0 {
			return 0, &notYet{err: fmt.Errorf("%s and %s have not both handled the event at position %d: pause the consumer that is ahead until the other has, and retry or discard dead letters", errtext.Value(consumers[0]), errtext.Value(consumers[1]), position)}
		}
	}
	return high, nil
}

func readDifferences(ctx context.Context, tx *sql.Tx, c Comparison, found *Compared) error {
	type difference struct {
		old bool
		row string
	}
	all, err := pgdriver.QueryAll(ctx, tx, pgdriver.Columns(func(d *difference) []any { return []any{&d.old, &d.row} }), `
WITH "rows of Old" AS MATERIALIZED (`+asJSON(c.OldRows)+`), "rows of New" AS MATERIALIZED (`+asJSON(c.NewRows)+`)
(SELECT true, row FROM (SELECT row FROM "rows of Old" EXCEPT ALL SELECT row FROM "rows of New") AS d ORDER BY row LIMIT 100)
UNION ALL (SELECT false, row FROM (SELECT row FROM "rows of New" EXCEPT ALL SELECT row FROM "rows of Old") AS d ORDER BY row LIMIT 100)`)
	if state := pgdriver.SQLState(err); strings.HasPrefix(state, "42") && state != pgdriver.InsufficientPrivilege {
		return fmt.Errorf("%w: OldRows or NewRows: %v", ErrInvalid, err) // %v, since a table of the library is not missing
	}
	if err != nil {
		return fmt.Errorf("read the rows: %w", err)
	}
	for _, d := range all {
		if d.old {
			found.OnlyOld = append(found.OnlyOld, d.row)
		} else {
			found.OnlyNew = append(found.OnlyNew, d.row)
		}
	}
	return nil
}
