package ops

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Rename gives a consumer another name. Under the new name the consumer continues exactly where it
// was: its checkpoint and units, positions in doubt, dead letters, audit rows, recorded effects and
// types, the keys of [jobs.Client.EnqueueFor] and its operations get the new name. Without the
// tables of jobs there are no such keys.
//
// Stop the workers with the old name, rename, then deploy the new name. Rename refuses with a
// [RegisteredError] while a worker has code for either name, and with [ErrExists] if the new name
// is in use.
//
// A paused row stays under the old name, so a worker that still has it handles no event. [Consumer]
// shows the new name as RenamedTo.
// No operation but [Operator.Retire] accepts the old name. Retire frees it, so call Retire only when
// no program with the old name can start any more.
//
// Code with EmitAs of the old name must name the new one from then on. Upgrade all workers of jobs
// and pgfrontier before a Rename: earlier versions do not know the row that stays.
//
// Both names have a record of the Rename.
func (o *Operator) Rename(ctx context.Context, consumer, to string, by By) error {
	v := onConsumer(KindRename, consumer, by)
	invalid := checkConsumer(consumer)
	switch err := checkConsumer(to); {
	case err != nil:
		invalid = errtext.Join(invalid, fmt.Errorf("the new name: %w", err))
	case to == consumer:
		invalid = errtext.Join(invalid, errNamed)
	}
	return o.change(ctx, v, invalid, func(tx *sql.Tx) (id int64, err error) {
		c := renaming{o.in(tx), renameDetail{From: consumer, To: to}}
		units, err := c.lock(ctx, consumer)
		if err == nil {
			err = c.check(ctx)
		}
		if err != nil {
			return 0, unchangedIf(err, to)
		}
		c.detail.Units, c.detail.Position = len(units), lowest(units)
		err = c.renameRows(ctx)
		if err == nil {
			err = c.renameEmitter(ctx, o.emittedThrough, o.emitted)
		}
		if err == nil {
			err = c.leaveRow(ctx, by)
		}
		if err != nil {
			return 0, err
		}
		for _, name := range []string{to, consumer} {
			op := v.Operation
			op.Consumer = name
			if id, err = o.record(ctx, tx, op, c.detail); err != nil {
				return 0, err
			}
		}
		return id, nil
	})
}

// renameDetail is a rename as recorded in the table of operations.
type renameDetail struct {
	From        string `json:"from"`
	To          string `json:"to"`
	Position    int64  `json:"position"` // of the unit with the lowest position
	Units       int    `json:"units"`
	DeadLetters int64  `json:"dead_letters"`
	Emitted     int64  `json:"jobs_emitted"` // keys of EnqueueFor
}

// renaming is the transaction of a rename.
type renaming struct {
	consumerTx
	detail renameDetail
}

// check refuses a rename while a worker has code for one of the names, or if the new name is in use.
func (c *renaming) check(ctx context.Context) error {
	to := c.detail.To
	if err := c.unregistered(ctx, c.detail.From); err != nil {
		return err
	}
	if err := c.unregistered(ctx, to); err != nil {
		return fmt.Errorf("the new name %s: %w", errtext.Value(to), err)
	}
	const its = ` WHERE consumer_name = $1::text OR ` + unitsOf
	for _, t := range []ident.Table{c.t.Checkpoints, c.t.DeadLetters, c.t.GapSkips, c.t.Receipts} {
		var taken bool
		if err := c.tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+t.SQL()+its+`)`, to).Scan(&taken); err != nil {
			return fmt.Errorf("read the rows of the new name: %w", err)
		}
		if taken {
			return takenError(to, t)
		}
	}
	var retired bool
	err := c.tx.QueryRowContext(ctx, `
SELECT EXISTS (SELECT FROM `+c.t.Operations.SQL()+` WHERE consumer_name = $1::text AND operation = 'retire' AND detail->>'renamed_to' IS NULL)`, to).Scan(&retired)
	if err != nil {
		return fmt.Errorf("read the operations of the new name: %w", err)
	}
	if retired {
		return fmt.Errorf("%w: %s has operations of a retired consumer %s, which would count as this one's, as would its keys of EnqueueFor: choose another name", ErrExists, c.t.Operations.SQL(), errtext.Value(to))
	}
	return nil
}

// renameRows renames the rows of the consumer, and of all its present and former units. The leader
// assigns them anew.
func (c *renaming) renameRows(ctx context.Context) error {
	d := &c.detail
	const (
		its     = ` WHERE consumer_name = $1::text OR ` + unitsOf
		renamed = ` SET consumer_name = $2::text || substr(consumer_name, length($1::text) + 1)`
	)
	for _, s := range []struct {
		what, query string
		rows        *int64
	}{
		{"rename its checkpoint", `UPDATE ` + c.t.Checkpoints.SQL() + renamed + `, revision = revision + 1, updated_at = clock_timestamp()` + its, new(int64)},
		{"rename its dead letters", `UPDATE ` + c.t.DeadLetters.SQL() + renamed + its, &d.DeadLetters},
		{"rename its rows of the audit", `UPDATE ` + c.t.GapSkips.SQL() + renamed + its, new(int64)},
		{"rename its receipts", `UPDATE ` + c.t.Receipts.SQL() + renamed + `, unit = CASE WHEN unit <> '' THEN $2::text || substr(unit, length($1::text) + 1) ELSE '' END` + its, new(int64)},
		{"rename its operations", `UPDATE ` + c.t.Operations.SQL() + renamed + its, new(int64)},
	} {
		var err error
		*s.rows, err = exec(ctx, c.tx, s.what, s.query, d.From, d.To)
		if pgdriver.SQLState(err) == pgdriver.UniqueViolation { // a worker has placed the new name meanwhile
			return takenError(d.To, c.t.Checkpoints)
		}
		if err != nil {
			return err
		}
	}
	_, err := exec(ctx, c.tx, "delete its assignment", `DELETE FROM `+c.t.Assignments.SQL()+its, d.From)
	return err
}

// renameEmitter renames the keys of EnqueueFor, if the tables of jobs exist. The row of the settled
// position is locked first, as by all who change the keys.
func (c *renaming) renameEmitter(ctx context.Context, through, emitted ident.Table) (err error) {
	exists := false
	if err := c.tx.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NOT NULL`, emitted.SQL()).Scan(&exists); err != nil || !exists {
		return err
	}
	for _, t := range []ident.Table{through, emitted} {
		c.detail.Emitted, err = exec(ctx, c.tx, "rename its keys of EnqueueFor", `UPDATE `+t.SQL()+` SET emitter = $2::text WHERE emitter = $1::text`, c.detail.From, c.detail.To)
		if pgdriver.SQLState(err) == pgdriver.UniqueViolation {
			return fmt.Errorf("%w: %s has rows of the emitter %s, of a consumer that is gone or of EmitAs: choose another name, or delete these rows if they are of a consumer that is gone", ErrExists, t.SQL(), errtext.Value(c.detail.To))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaveRow inserts the row under the old name. It also forgets that dead workers had code for the
// name.
func (c *renaming) leaveRow(ctx context.Context, by By) error {
	d := c.detail
	_, err := exec(ctx, c.tx, "keep the old name", `
INSERT INTO `+c.t.Checkpoints.SQL()+` (consumer_name, last_position, revision, paused_at, paused_by, paused_reason)
SELECT $1::text, $3::bigint, revision, clock_timestamp(), $4::text, $5::text FROM `+c.t.Checkpoints.SQL()+` WHERE consumer_name = $2::text`,
		d.From, d.To, strconv.FormatInt(leftPosition, 10), by.Operator, "renamed to "+d.To+": "+by.Reason)
	if err == nil {
		err = forgetDead(ctx, c.consumerTx, d.From)
	}
	return err
}

// errNamed and unchangedIf report a Rename that has nothing to do.
var errNamed = &refusal{ErrUnchanged, "it has this name already"}

func unchangedIf(err error, to string) error {
	if r, ok := err.(*renamed); ok && r.to == to {
		return &refusal{ErrUnchanged, "it was renamed so already"}
	}
	return err
}
