package ops

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
)

// consumerCore is what all operations of an Operator share.
type consumerCore struct {
	core
	t        tables.Tables
	sql      statements
	revision *int64 // revision that the consumer must have; nil: any

	emitted, emittedThrough ident.Table // of jobs; they may not exist
}

// consumerTx is the transaction of a change of a consumer, with the statements that it executes.
type consumerTx struct {
	tx       *sql.Tx
	t        tables.Tables
	sql      statements
	revision *int64 // as in consumerCore
}

// positionColumn is the column of events that orders the log.
const positionColumn = "global_position"

// sequenced is a log that names its column of positions, for package frontier.
type sequenced struct{ tables.Tables }

func (s sequenced) PositionColumn() (table, column string) { return s.Events.SQL(), positionColumn }

func (o *consumerCore) in(tx *sql.Tx) consumerTx { return consumerTx{tx, o.t, o.sql, o.revision} }

// onConsumer returns a change of a consumer, or of a unit.
func onConsumer(kind Kind, name string, by By) *verb {
	return &verb{Operation{Consumer: name, Kind: kind, By: by}, "consumer " + errtext.Value(name)}
}

// changeUnits changes the units of a consumer, or one unit. choose returns the units to change. do
// checks and changes one unit, and returns the detail of its record.
func (o *consumerCore) changeUnits(ctx context.Context, v *verb, invalid error, choose func(c consumerTx, units []locked) ([]locked, error), do func(c consumerTx, at locked) (detail any, err error)) error {
	return o.change(ctx, v, errtext.Join(checkUnit(v.Consumer), invalid), func(tx *sql.Tx) (id int64, err error) {
		c := o.in(tx)
		units, err := c.lock(ctx, v.Consumer)
		if err == nil {
			units, err = choose(c, units)
		}
		if err != nil {
			return 0, err
		}
		for _, at := range units {
			detail, err := do(c, at)
			if err != nil {
				return 0, err
			}
			op := v.Operation
			op.Consumer = at.consumer
			if id, err = o.record(ctx, tx, op, detail); err != nil {
				return 0, err
			}
		}
		return id, nil
	})
}

// An operation takes the name of a consumer. If the consumer is split, the operation changes its
// units, each as if it were a consumer. Operations on one unit also take the name of a unit.

// locked is the progress of a unit whose row the transaction has locked.
type locked struct {
	consumer string // the unit's name: that of the consumer, if it is not split
	position int64
	paused   *Pause
	key      string // name of the key by which it is split; empty: the aggregate's id
	effects  delivered.Borders
}

// lock waits for the rows of a consumer's units, or of one unit, and reads them in order of
// name. Read other tables that depend on the progress after lock. The snapshot of lock may be
// older than the last commit to a row.
//
// lock takes the consumer's own row first. Splits and merges lock this row, too, so the units
// do not change.
//
// lock refuses a consumer that was renamed, and one that has another revision than the one of
// IfRevision.
func (c consumerTx) lock(ctx context.Context, name string) ([]locked, error) {
	units, err := c.lockUnits(ctx, name)
	if err == nil {
		err = refuseRenamed(ctx, c, partition.Consumer(name), units[0].position)
	}
	if err == nil {
		err = c.checkRevision(ctx, name)
	}
	return units, err
}

func (c consumerTx) lockUnits(ctx context.Context, name string) ([]locked, error) {
	consumer := partition.Consumer(name)
	own, split, err := c.lockOwn(ctx, consumer)
	switch {
	case err != nil:
		return nil, err
	case !split && name == consumer:
		return []locked{own}, nil
	case !split:
		return nil, errNoCheckpoint
	}
	which := unitsOf
	if name != consumer {
		which = `consumer_name = $1::text`
	}
	units, err := pgdriver.QueryAll(ctx, c.tx, func(rows *sql.Rows) (at locked, err error) {
		var had string
		to := append([]any{&at.consumer, &at.position}, pauseInto(&at.paused)...)
		if err = rows.Scan(append(to, &at.key, &had)...); err != nil {
			return at, err
		}
		return at, at.parseEffects(had)
	}, `
SELECT consumer_name, last_position, `+pgdriver.Time(`paused_at`)+`, paused_by, paused_reason, partition_key, effects::text
FROM `+c.t.Checkpoints.SQL()+` WHERE `+which+` AND split_at IS NULL ORDER BY consumer_name COLLATE "C" FOR UPDATE`, name)
	switch {
	case err != nil:
		return nil, waitError(ctx, err)
	case len(units) == 0:
		return nil, errNoCheckpoint
	}
	return units, nil
}

// lockOwn waits for the consumer's own row. split reports whether the consumer is split.
func (c consumerTx) lockOwn(ctx context.Context, consumer string) (at locked, split bool, err error) {
	at.consumer = consumer
	var limit, had string
	to := append([]any{&at.position}, pauseInto(&at.paused)...)
	err = c.tx.QueryRowContext(ctx, `
SELECT last_position, `+pgdriver.Time(`paused_at`)+`, paused_by, paused_reason, split_at IS NOT NULL, effects::text, set_config('idle_in_transaction_session_timeout', $2::text, true) || set_config('lock_timeout', '0', true)
FROM `+c.t.Checkpoints.SQL()+` WHERE consumer_name = $1::text FOR UPDATE`, consumer, idleLimit).Scan(append(to, &split, &had, &limit)...)
	switch {
	case noRows(err):
		return at, false, errNoCheckpoint
	case err != nil:
		return at, false, waitError(ctx, err)
	}
	return at, split, at.parseEffects(had)
}

// parseEffects parses the borders of a locked unit.
func (at *locked) parseEffects(text string) (err error) {
	if at.effects, err = delivered.Parse(text); err != nil {
		return fmt.Errorf("read which effects %s has had: %w", at.consumer, err)
	}
	return nil
}

// checkRevision checks the revision of a consumer whose rows are locked.
func (c consumerTx) checkRevision(ctx context.Context, name string) error {
	if c.revision == nil {
		return nil
	}
	rows, err := pgdriver.QueryAll(ctx, c.tx, pgdriver.Columns(func(r *revised) []any { return []any{&r.name, &r.revision} }), `
SELECT consumer_name, revision FROM `+c.t.Checkpoints.SQL()+` WHERE consumer_name = $1::text OR `+unitsOf+` ORDER BY consumer_name COLLATE "C"`, name)
	if err != nil {
		return fmt.Errorf("read its revision: %w", err)
	}
	if now := revisionOf(rows); now != *c.revision {
		return &MovedError{Decided: *c.revision, Revision: now}
	}
	return nil
}

func waitError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("gave up waiting for its checkpoint row, which a running batch keeps until it ends (BatchTimeout at most): allow more time: %w", err)
	}
	if pgdriver.IsTimeLimit(err) {
		return fmt.Errorf("gave up waiting for its checkpoint row, which a running batch keeps until it ends (BatchTimeout at most): raise the statement_timeout of the role: %w", err)
	}
	return fmt.Errorf("lock its checkpoint row: %w", err)
}

// furthest returns the highest position of units.
func furthest(units []locked) int64 {
	return slices.MaxFunc(units, func(a, b locked) int { return int(min(max(a.position-b.position, -1), 1)) }).position
}

// lowest returns the lowest position of units.
func lowest(units []locked) int64 {
	position := units[0].position
	for _, at := range units {
		position = min(position, at.position)
	}
	return position
}

// unitOf returns the unit to which an aggregate belongs.
func unitOf(units []locked, aggregate string) ([]locked, error) {
	if len(units) == 1 {
		return units, nil
	}
	if key := units[0].key; key != "" {
		return nil, fmt.Errorf("%w: the consumer is split by the key %s, which only its code knows: name the unit (Consumers lists them)", ErrInvalid, errtext.Value(key))
	}
	slot := partition.Slot(aggregate)
	for i, u := range units {
		if _, slots, ok := partition.Parse(u.consumer); ok && slots.Has(slot) {
			return units[i : i+1], nil
		}
	}
	return nil, fmt.Errorf("no unit has slot %03x of aggregate %s", slot, errtext.Value(aggregate))
}

// keyOf returns the key by which a unit's code keeps events in order, as far as the database knows.
// It is empty for the aggregate's id.
func keyOf(ctx context.Context, c consumerTx, at locked) (key string, err error) {
	if at.key != "" {
		return at.key, nil
	}
	err = c.tx.QueryRowContext(ctx, `
SELECT coalesce(max(partitions->$1::text->>'key'), '') FROM `+c.t.Nodes.SQL(), partition.Consumer(at.consumer)).Scan(&key)
	if err != nil {
		err = fmt.Errorf("read its key: %w", err)
	}
	return key, err
}

// leftPosition is the position of the row that Rename leaves under the old name. A worker stops at
// a position above the log's last one, even if the row is not paused.
const leftPosition = math.MaxInt64

// renamed refuses a change under the name that a consumer had before a Rename.
type renamed struct{ to string }

func (e *renamed) Error() string {
	return fmt.Sprintf("it was renamed to %s: use that name; Retire removes the row that is left under the old name", errtext.Value(e.to))
}

func (e *renamed) Unwrap() error { return ErrNotFound }

// renamedTo returns the new name of a consumer if a row of it is one that Rename has left.
func renamedTo(ctx context.Context, c consumerTx, consumer string, position int64) (to string, err error) {
	if position != leftPosition {
		return "", nil
	}
	err = c.tx.QueryRowContext(ctx, `
SELECT coalesce((SELECT detail->>'to' FROM `+c.t.Operations.SQL()+` WHERE consumer_name = $1::text AND operation = 'rename' ORDER BY id DESC LIMIT 1), '')`, consumer).Scan(&to)
	if err != nil {
		return "", fmt.Errorf("read its new name: %w", err)
	}
	return to, nil
}

// refuseRenamed returns a *renamed for a consumer that was renamed.
func refuseRenamed(ctx context.Context, c consumerTx, consumer string, position int64) error {
	to, err := renamedTo(ctx, c, consumer, position)
	if err == nil && to != "" {
		err = &renamed{to}
	}
	return err
}
