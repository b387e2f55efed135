package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/serial"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Operator works on the consumers of one set of tables. It is safe for concurrent use.
type Operator struct {
	core
	t        tables.Tables
	sql      statements
	revision *int64 // revision that the consumer must have; nil: any
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
	return &Operator{core: core{
		db: pgdriver.NewPool(db), changes: t.Changes,
		missing: "give New the table names of the workers, or apply the migrations",
		// A record raises the revision, as every change of a consumer's progress does. A retired
		// consumer has no row to raise.
		insert: `
WITH raised AS (
	UPDATE ` + t.Checkpoints.SQL() + ` SET revision = revision + 1, updated_at = clock_timestamp()
	WHERE consumer_name = $5::text
)
INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason, created_at)
SELECT $5::text, $1::text, $2::jsonb, $3::text, $4::text, clock_timestamp()
RETURNING id, detail::text, created_at`,
		object:  func(on Operation) []any { return []any{on.Consumer} },
		workers: t.Nodes, stopped: t.Stopped, draining: `draining`, serials: serial.Consumers(t),
	}, t: t, sql: newStatements(t)}, nil
}

// positionColumn is the column of events that orders the log.
const positionColumn = "global_position"

// sequenced is a log that names its column of positions, for package frontier.
type sequenced struct{ tables.Tables }

func (s sequenced) PositionColumn() (table, column string) { return s.Events.SQL(), positionColumn }

func (o *Operator) in(tx *sql.Tx) consumerTx { return consumerTx{tx, o.t, o.sql, o.revision} }

// onConsumer returns a change of a consumer, or of a unit.
func onConsumer(kind Kind, name string, by By) *verb {
	return &verb{Operation{Consumer: name, Kind: kind, By: by}, "consumer " + errtext.Value(name)}
}

// changeUnits changes the units of a consumer, or one unit. choose returns the units to change. do
// checks and changes one unit, and returns the detail of its record.
func (o *Operator) changeUnits(ctx context.Context, v *verb, invalid error, choose func(c consumerTx, units []locked) ([]locked, error), do func(c consumerTx, at locked) (detail any, err error)) error {
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
