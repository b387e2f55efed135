package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Operator works on the consumers of one set of tables. It is safe for concurrent use.
type Operator struct {
	db       pgdriver.Pool
	t        tables.Tables
	sql      statements
	dry      *dryRun // nil: changes are committed
	revision *int64  // revision that the consumer must have; nil: any
}

// Option is an option of [New] and [NewJobs].
type Option func(*store.Names)

// WithNames sets the names of the tables: those of the workers, of the event store and of jobs.
func WithNames(n store.Names) Option { return func(names *store.Names) { *names = n } }

func configured(opts []Option) (n store.Names) {
	for _, set := range opts {
		if set != nil {
			set(&n)
		}
	}
	return n
}

// New returns an Operator. New does not access the database.
func New(db *sql.DB, opts ...Option) (*Operator, error) {
	if db == nil {
		return nil, errors.New("ops: db is nil: open the database of the workers with sql.Open")
	}
	t, err := tables.Parse(configured(opts))
	if err != nil {
		return nil, fmt.Errorf("ops: WithNames: %w", err)
	}
	return &Operator{db: pgdriver.NewPool(db), t: t, sql: newStatements(t)}, nil
}

// positionColumn is the column of events that orders the log.
const positionColumn = "global_position"

// sequenced is a log that names its column of positions, for package frontier.
type sequenced struct{ tables.Tables }

func (s sequenced) PositionColumn() (table, column string) { return s.Events.SQL(), positionColumn }

// idleLimit is the time without a statement, in milliseconds, after which the server ends a
// change. So an operator whose connection has died does not hold a consumer.
const idleLimit = "15000"

// change runs one operation on the units of a consumer, or on one unit. choose returns the units to
// change. do checks and changes one unit, and returns the detail for the table of operations.
func (o *Operator) change(ctx context.Context, kind Kind, name string, by By, choose func(tx *sql.Tx, units []locked) ([]locked, error), do func(tx *sql.Tx, at locked) (detail any, err error)) error {
	return o.operate(ctx, kind, name, errtext.Join(checkUnit(name), by.check()), func(tx *sql.Tx) (id int64, err error) {
		units, err := o.lock(ctx, tx, name)
		if err == nil {
			err = o.checkRevision(ctx, tx, name)
		}
		if err == nil {
			units, err = choose(tx, units)
		}
		for _, at := range units {
			var detail any
			if err == nil {
				detail, err = do(tx, at)
			}
			if err == nil {
				id, err = o.record(ctx, tx, kind, at.consumer, by, detail)
			}
		}
		return id, err
	})
}

// operate runs the transaction of one operation unless its arguments are invalid.
func (o *Operator) operate(ctx context.Context, kind Kind, name string, invalid error, do func(tx *sql.Tx) (id int64, err error)) error {
	err := invalid
	if err == nil {
		err = audited(ctx, o.db, o.t.Changes, o.dry, do)
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("ops: %s of consumer %s: %w", kind, errtext.Value(name), explain(err)))
	}
	return nil
}

// audited runs the transaction of one operation, and notifies the workers. do returns the ID of
// the operation's row. A dry run is rolled back.
func audited(ctx context.Context, db pgdriver.Pool, table ident.Table, dry *dryRun, do func(tx *sql.Tx) (id int64, err error)) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
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
	if err != nil {
		return err
	}
	if err := changes.Notify(ctx, tx, table); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return commitError(id, err)
	}
	return nil
}

// record raises the revision, as every change of a consumer's progress does, and inserts the
// operation. A retired consumer has no row to raise.
func (o *Operator) record(ctx context.Context, tx *sql.Tx, kind Kind, consumer string, by By, detail any) (id int64, err error) {
	text, err := json.Marshal(detail)
	if err != nil {
		return 0, err
	}
	var kept string
	var at time.Time
	err = tx.QueryRowContext(ctx, `
WITH raised AS (
	UPDATE `+o.t.Checkpoints.SQL()+` SET revision = revision + 1, updated_at = clock_timestamp()
	WHERE consumer_name = $1::text
)
INSERT INTO `+o.t.Operations.SQL()+` (consumer_name, operation, detail, operator, reason, created_at)
SELECT $1::text, $2::text, $3::jsonb, $4::text, $5::text, clock_timestamp()
RETURNING id, detail::text, created_at`, consumer, string(kind), string(text), by.Operator, by.Reason).Scan(&id, &kept, &at)
	if err != nil {
		return 0, fmt.Errorf("record the operation: %w", err)
	}
	if o.dry != nil {
		o.dry.add(Operation{Consumer: consumer, Kind: kind, Detail: json.RawMessage(kept), By: by, At: at.UTC()})
	}
	return id, nil
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
