package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	refusals "github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/internal/serial"
	"github.com/pgfrontier/worker/migrations"
)

// core is what an Operator and a Jobs share. Every operation has one of two patterns. A list is
// one call of read. A change is one call of change: it checks the arguments and opens a
// transaction. do locks the rows, checks them, changes them, and records what it has done.
// change then notifies the workers and commits. Both name the operation and the remedy in the
// error.
type core struct {
	db      pgdriver.Pool
	changes ident.Table
	missing string                   // the remedy if a table is missing
	insert  string                   // records an operation
	object  func(on Operation) []any // the last parameters of insert
	what    string                   // " of jobs", for errors; empty: of consumers
	dry     *dryRun                  // nil: changes are committed

	workers, stopped ident.Table
	draining         string // SQL condition under which a worker drains without a request
	serials          []serial.Serial
}

// fail returns the error of an operation. It is nil if err is nil. what names the operation.
func (c *core) fail(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case pgdriver.IsUndefined(err):
		err = fmt.Errorf("%w: %s: %w", migrations.ErrNotApplied, c.missing, err)
	case pgdriver.SQLState(err) == pgdriver.InsufficientPrivilege:
		err = fmt.Errorf("%w: execute what migrations.Grants or pgfrontier migrate grants (also with --jobs) prints for operators: %w", refusals.ErrPrivileges, err)
	}
	return errtext.Of(fmt.Errorf("ops: %s: %w", what, err))
}

// read returns the rows of a query, unless the arguments are invalid.
func read[T any](ctx context.Context, c *core, what string, invalid error, scan func(*sql.Rows) (T, error), query string, args ...any) (all []T, err error) {
	if err = invalid; err == nil {
		all, err = pgdriver.ReadAll(ctx, c.db, scan, query, args...)
		err = pgdriver.CutOff(ctx, err)
	}
	if err != nil {
		return nil, c.fail(what, err)
	}
	return all, nil
}

// verb is a change before it is made.
type verb struct {
	Operation        // as it is recorded, without its detail
	on        string // its object, for the error
}

func (v *verb) String() string { return fmt.Sprintf("%s of %s", v.Kind, v.on) }

// change runs the transaction of a change, unless its arguments are invalid. do returns the ID of
// the change's record.
func (c *core) change(ctx context.Context, v *verb, invalid error, do func(tx *sql.Tx) (id int64, err error)) error {
	err := errtext.Join(invalid, v.By.check())
	if err == nil {
		err = c.transact(ctx, c.dry, do)
		if isCutOff(ctx, err) && !errors.As(err, new(*UnknownOutcomeError)) {
			err = pgdriver.CutOff(ctx, err)
		}
	}
	return c.fail(v.String(), err)
}

// transact runs the transaction of a change, and notifies the workers. A dry run is rolled back.
func (c *core) transact(ctx context.Context, dry *dryRun, do func(tx *sql.Tx) (id int64, err error)) error {
	tx, err := c.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if err := pgdriver.WithoutJIT(ctx, tx); err != nil {
		return err
	}
	switch {
	case dry != nil && dry.accept == nil:
		return dry.run(tx, do)
	case dry != nil:
		do = dry.judge(do)
	}
	id, err := do(tx)
	if err == nil {
		err = changes.Notify(ctx, tx, c.changes)
	}
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return commitError(id, err)
	}
	return nil
}

// isCutOff reports whether err is that of a statement that ctx cut off, or of one that found its
// connection or its transaction gone after the end of ctx.
func isCutOff(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, sql.ErrTxDone) ||
		pgdriver.IsConnectionLoss(err) || pgdriver.SQLState(err) == pgdriver.QueryCanceled)
}

// dryRun keeps the operations that would be recorded.
type dryRun struct {
	recorded []Operation
	accept   func(recorded []Operation) error // nil: every change is rolled back
}

func (r *dryRun) add(operation Operation) { r.recorded = append(r.recorded, operation) }

// judge wraps do. It calls accept with the recorded operations, and returns its error.
func (r *dryRun) judge(do func(tx *sql.Tx) (int64, error)) func(tx *sql.Tx) (int64, error) {
	return func(tx *sql.Tx) (int64, error) {
		r.recorded = nil
		id, err := do(tx)
		if err == nil {
			err = r.accept(r.recorded)
		}
		return id, err
	}
}

// run calls do and rolls its changes back. If do fails, its operations are not kept.
func (r *dryRun) run(tx *sql.Tx, do func(tx *sql.Tx) (int64, error)) error {
	before := len(r.recorded)
	if _, err := do(tx); err != nil {
		r.recorded = r.recorded[:before]
		return err
	}
	return tx.Rollback()
}

// record inserts an operation.
func (c *core) record(ctx context.Context, tx *sql.Tx, op Operation, detail any) (id int64, err error) {
	text, err := json.Marshal(detail)
	if err != nil {
		return 0, err
	}
	args := append([]any{string(op.Kind), string(text), op.By.Operator, op.By.Reason}, c.object(op)...)
	if err := tx.QueryRowContext(ctx, c.insert, args...).Scan(&id, pgdriver.RawJSON(&op.Detail), pgdriver.UTC(&op.At)); err != nil {
		return 0, fmt.Errorf("record the operation: %w", err)
	}
	if c.dry != nil {
		c.dry.add(op)
	}
	return id, nil
}

// idleLimit is the time without a statement, in milliseconds, after which the server ends a
// change. So an operator whose connection has died does not hold a consumer.
const idleLimit = "15000"

// setLimits sets the time limits of the transaction of a change that locks no checkpoint.
func setLimits(ctx context.Context, tx *sql.Tx) error {
	_, err := exec(ctx, tx, "limit the transaction", `SELECT set_config('idle_in_transaction_session_timeout', $1::text, true), set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true)`, idleLimit)
	return err
}

// exec executes a statement of an operation. what is its purpose, for the error.
func exec(ctx context.Context, tx *sql.Tx, what, query string, args ...any) (rows int64, err error) {
	result, err := tx.ExecContext(ctx, query, args...)
	if err == nil {
		rows, err = result.RowsAffected()
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return rows, nil
}

// orZero returns the result of an operation, or the zero value if the operation failed.
func orZero[T any](result T, err error) (T, error) {
	if err != nil {
		return *new(T), err
	}
	return result, nil
}

// noRows reports whether a query returned no row.
func noRows(err error) bool { return errors.Is(err, sql.ErrNoRows) }
