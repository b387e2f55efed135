package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Preview is an exact dry run. It calls change with an Operator whose changes are
// rolled back, and returns what each would record, with no ID, in order. It refuses what
// the change would refuse. Each begins from what there is, not from what the one before it
// would leave: preview one at a time. Others may move the consumer before the change is
// made: [Operator.IfRevision] refuses it then.
//
// Meanwhile it holds what the change would hold: it waits for the batch that a worker
// has in hand, and the consumer waits for it.
func (o *Operator) Preview(change func(o *Operator) error) ([]Operation, error) {
	p := *o
	p.dry = &rehearsal[Operation]{}
	if err := change(&p); err != nil {
		return nil, err
	}
	return p.dry.recorded, nil
}

// Preview is an exact dry run, as [Operator.Preview] is. If the change makes a job, what
// it returns and the detail of the operation name a job that was rolled back: the one that
// is made later has another ID.
func (o *Jobs) Preview(change func(o *Jobs) error) ([]JobsOperation, error) {
	p := *o
	p.dry = &rehearsal[JobsOperation]{}
	if err := change(&p); err != nil {
		return nil, err
	}
	return p.dry.recorded, nil
}

// Confirmed makes a change if accept takes what it records, which is what
// [Operator.Preview] has shown or not. An error of accept undoes the change and is
// wrapped by what Confirmed returns. Nobody moves the consumer in between. Of several changes,
// accept is asked about each, in its transaction.
//
// [Operator.IfRevision] does not fit a consumer that runs: every batch changes its revision.
// With Confirmed its dead letters can be discarded exactly as they were shown.
func (o *Operator) Confirmed(change func(o *Operator) error, accept func(recorded []Operation) error) error {
	p := *o
	p.dry = &rehearsal[Operation]{accept: accept}
	return change(&p)
}

// Confirmed makes a change if accept takes what it records, as [Operator.Confirmed] does. Of
// a retry, the ID of the new job is another one than Preview has shown.
func (o *Jobs) Confirmed(change func(o *Jobs) error, accept func(recorded []JobsOperation) error) error {
	p := *o
	p.dry = &rehearsal[JobsOperation]{accept: accept}
	return change(&p)
}

// rehearsal keeps what operations would have recorded.
type rehearsal[T any] struct {
	recorded []T
	accept   func(recorded []T) error // nil: every change is undone
}

func (r *rehearsal[T]) add(operation T) { r.recorded = append(r.recorded, operation) }

// judge asks whether what an operation has recorded may stay.
func (r *rehearsal[T]) judge(do func(tx *sql.Tx) (int64, error)) func(tx *sql.Tx) (int64, error) {
	return func(tx *sql.Tx) (int64, error) {
		r.recorded = nil
		id, err := do(tx)
		if err == nil {
			err = r.accept(r.recorded)
		}
		return id, err
	}
}

// run does an operation and undoes it. One that fails leaves nothing.
func (r *rehearsal[T]) run(tx *sql.Tx, do func(tx *sql.Tx) (int64, error)) error {
	before := len(r.recorded)
	if _, err := do(tx); err != nil {
		r.recorded = r.recorded[:before]
		return err
	}
	return tx.Rollback()
}

// MovedError refuses a change that was decided on an old view of a consumer.
type MovedError struct {
	Decided  int64 // the revision that it was decided on
	Revision int64 // of the consumer now
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("it was decided on revision %d, and the consumer has revision %d now: a worker or an operator has moved it since, look again", e.Decided, e.Revision)
}

// IfRevision returns an Operator that refuses a change with a [MovedError] unless the
// consumer, or the unit that is named, has this revision: that of [Consumer] or [Unit].
// Every batch of a worker changes it, so this is for consumers that are paused or
// stuck. It holds for one change: that changes the revision, too.
func (o *Operator) IfRevision(revision int64) *Operator {
	p := *o
	p.revision = &revision
	return &p
}

// unmoved checks the revision of a consumer whose rows are locked.
func (o *Operator) unmoved(ctx context.Context, tx *sql.Tx, name string) error {
	if o.revision == nil {
		return nil
	}
	rows, err := pgdriver.QueryAll(ctx, tx, func(rows *sql.Rows) (r revised, err error) {
		err = rows.Scan(&r.name, &r.revision)
		return r, err
	}, `
SELECT consumer_name, revision FROM `+o.t.Checkpoints.SQL()+` WHERE consumer_name = $1::text OR `+unitsOf+` ORDER BY consumer_name COLLATE "C"`, name)
	if err != nil {
		return fmt.Errorf("read its revision: %w", err)
	}
	if now := revisionOf(rows); now != *o.revision {
		return &MovedError{Decided: *o.revision, Revision: now}
	}
	return nil
}
