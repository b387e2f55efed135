package ops

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/serial"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Operator works on the consumers of one set of tables. It is safe for concurrent use.
type Operator struct {
	*consumerCore
	deadLetterOps
	logOps
	versionOps
	verifyOps
}

// verifyOps are the operations of an Operator that compare rows with events.
type verifyOps struct{ *consumerCore }

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
	var jobs tables.Jobs
	if err == nil {
		jobs, err = tables.ParseJobs(configured(opts))
	}
	if err != nil {
		return nil, fmt.Errorf("ops: WithNames: %w", err)
	}
	return consumerCore{core: core{
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
	}, t: t, sql: newStatements(t), emitted: jobs.Emitted, emittedThrough: jobs.EmittedThrough}.under(nil), nil
}

// under returns an Operator whose changes are made as dry tells. If dry is nil, they are committed.
func (c consumerCore) under(dry *dryRun) *Operator {
	c.dry = dry
	return &Operator{&c, deadLetterOps{&c}, logOps{&c}, versionOps{&c}, verifyOps{&c}}
}

// Preview is an exact dry run. It calls change with an Operator that rolls each change back. It
// returns the operations that would be recorded, without IDs, in order. It returns the error
// that the change would return. Each of several changes starts from the current state, not from
// the result of the change before. So preview one change at a time. The consumer may move
// between Preview and the change: [Operator.IfRevision] then refuses the change.
//
// Preview takes the locks of the change. It waits for the batch that a worker runs, and the
// consumer waits for Preview.
func (o *Operator) Preview(change func(o *Operator) error) ([]Operation, error) {
	p := o.under(&dryRun{})
	err := change(p)
	return orZero(p.dry.recorded, err)
}

// Confirmed runs a change, and commits it if accept returns nil for the recorded operations.
// accept compares these with the result of [Operator.Preview], for example. An error of accept
// rolls the change back; Confirmed returns an error that wraps it. The consumer cannot move in
// between. If there are several changes, accept is called for each, in the transaction of that
// change.
//
// [Operator.IfRevision] does not suit a running consumer, since batches change its
// revision. Confirmed can discard exactly the dead letters that were shown.
func (o *Operator) Confirmed(change func(o *Operator) error, accept func(recorded []Operation) error) error {
	return change(o.under(&dryRun{accept: accept}))
}

// IfRevision returns an Operator that refuses a change with a [MovedError] unless the consumer
// has this revision. If the change names a unit, its revision counts. [Consumer] and [Unit]
// have the revision. Batches of a worker change the revision, so IfRevision suits
// consumers that are paused or stuck. It suits one change, which changes the revision,
// too.
func (o *Operator) IfRevision(revision int64) *Operator {
	c := *o.consumerCore
	c.revision = &revision
	return c.under(c.dry)
}

// Operations lists operations on consumers, the newest first. limit is 1 to 10,000.
func (o *Operator) Operations(ctx context.Context, f OperationFilter, limit int) ([]Operation, error) {
	invalid := checkLimit(limit, maxJobs)
	if f.Consumer != "" {
		invalid = errtext.Join(invalid, checkConsumer(f.Consumer))
	}
	if f.Job != 0 || f.Queue != "" {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: operations on consumers have no job and no queue: Jobs lists those that have", ErrInvalid))
	}
	query, args := o.operationsSQL(f, limit)
	return read(ctx, &o.core, "list the operations", invalid, pgdriver.Columns(func(o *Operation) []any {
		return []any{&o.ID, &o.Consumer, &o.Kind, pgdriver.RawJSON(&o.Detail), &o.By.Operator, &o.By.Reason, pgdriver.UTC(&o.At)}
	}), query, args...)
}

func (o *Operator) operationsSQL(f OperationFilter, limit int) (query string, args []any) {
	args = []any{cmp.Or(f.Before, math.MaxInt64), limit}
	if f.Consumer == "" {
		return o.sql.allOperations, args
	}
	return o.sql.operationsOf, append(args, f.Consumer)
}
