package ops

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// RegisteredError refuses a Retire or a Rename of a consumer for which a worker has code.
type RegisteredError struct {
	Worker    uuid.UUID
	Host      string
	PID       int
	Heartbeat time.Time // the worker's last, by the database's clock
	table     string
}

func (e *RegisteredError) Error() string {
	return fmt.Sprintf("worker %s (host %s, pid %d, last heartbeat %s) has code for it: stop that worker, or deploy a program without the consumer; if that worker is dead, another one removes its row after twice HeartbeatTimeout; if none runs, DELETE FROM %s WHERE worker_id = '%s'",
		e.Worker, errtext.Value(e.Host), e.PID, e.Heartbeat.Format(time.RFC3339), e.table, e.Worker)
}

// Retire removes a consumer: its checkpoint, dead letters, audit rows, receipts and assignment. It
// also removes the consumer's name from the registrations of dead workers. Its operations stay; the
// last one is Retire. If a worker registers a consumer of this name again, it starts as a new
// consumer. The keys of [jobs.Client.EnqueueFor] stay: it enqueues no job twice.
//
// Retire refuses with a [RegisteredError] while a worker has code for the consumer. A worker whose
// last heartbeat is older than a day is dead, since a day is the longest HeartbeatTimeout.
//
// Retire refuses the version of a projection that has the effects with [ErrInvalid], while another
// version is a shadow: see [Operator.Switch].
//
// Under the old name of a renamed consumer, Retire removes what [Operator.Rename] has left.
func (o *Operator) Retire(ctx context.Context, consumer string, by By) error {
	v := onConsumer(KindRetire, consumer, by)
	return o.change(ctx, v, checkConsumer(consumer), func(tx *sql.Tx) (int64, error) {
		c := o.in(tx)
		units, err := c.lockUnits(ctx, consumer)
		if err == nil {
			err = c.checkRevision(ctx, consumer)
		}
		if err == nil {
			err = c.unregistered(ctx, consumer)
		}
		if err == nil {
			err = refuseInUse(ctx, c, consumer, units)
		}
		if err != nil {
			return 0, err
		}
		detail := retireDetail{Position: furthest(units)}
		if detail.RenamedTo, err = renamedTo(ctx, c, consumer, detail.Position); err != nil {
			return 0, err
		}
		if err := c.remove(ctx, consumer, &detail); err != nil {
			return 0, err
		}
		return o.record(ctx, tx, v.Operation, detail)
	})
}

// refuseInUse refuses a version of a projection that has the effects, while another version is a
// shadow: no consumer would have the effects.
func refuseInUse(ctx context.Context, c consumerTx, consumer string, units []locked) error {
	if isShadow(units) || furthest(units) == math.MaxInt64 { // what Rename has left
		return nil
	}
	var shadow, projection string
	err := c.tx.QueryRowContext(ctx, `
SELECT split_part(v.consumer_name, '#', 1), v.scope->>'projection' FROM `+c.t.Checkpoints.SQL()+` AS v
WHERE v.split_at IS NULL AND v.effects @> $2::jsonb AND v.scope->>'projection' IN (
	SELECT scope->>'projection' FROM `+c.t.Checkpoints.SQL()+` WHERE split_part(consumer_name, '#', 1) = $1::text AND split_at IS NULL)
ORDER BY 1 LIMIT 1`, consumer, delivered.Shadow().String()).Scan(&shadow, &projection)
	switch {
	case noRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("read the other versions of its projection: %w", err)
	}
	return fmt.Errorf("%w: it has the effects of projection %s, and %s is a shadow: Switch to that one before, or Retire it", ErrInvalid, errtext.Value(projection), errtext.Value(shadow))
}

// unregistered returns a *RegisteredError if workers have code for the consumer. The error
// names the worker with the latest heartbeat. A worker of another library does not report its
// code. It counts as having code, since it might start the consumer again.
func (c consumerTx) unregistered(ctx context.Context, consumer string) error {
	e := RegisteredError{table: c.t.Nodes.SQL()}
	err := c.tx.QueryRowContext(ctx, `
SELECT worker_id, coalesce(hostname, ''), coalesce(pid, 0), `+pgdriver.Time(`heartbeat_at`)+` FROM `+c.t.Nodes.SQL()+`
WHERE coalesce($1::text = ANY (consumers), true) AND heartbeat_at > clock_timestamp() - interval '1 day'
ORDER BY heartbeat_at DESC LIMIT 1`, consumer).Scan(&e.Worker, &e.Host, &e.PID, &e.Heartbeat)
	switch {
	case noRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("read the workers that have code for it: %w", err)
	}
	e.Heartbeat = e.Heartbeat.UTC()
	return &e
}

type retireDetail struct {
	Position    int64 `json:"position"`
	Audit       int64 `json:"audit_rows_deleted"`
	DeadLetters int64 `json:"dead_letters_deleted"`

	RenamedTo string `json:"renamed_to,omitempty"` // the row was left by a Rename
}

// remove deletes the rows of the consumer, and of all its present and former units.
func (c consumerTx) remove(ctx context.Context, consumer string, d *retireDetail) (err error) {
	const its = ` WHERE consumer_name = $1::text OR ` + unitsOf
	for _, s := range []struct {
		what, query string
		rows        *int64
	}{
		{"delete its assignment", `DELETE FROM ` + c.t.Assignments.SQL() + its, new(int64)},
		{"delete its rows of the audit", `DELETE FROM ` + c.t.GapSkips.SQL() + its, &d.Audit},
		{"delete its dead letters", `DELETE FROM ` + c.t.DeadLetters.SQL() + its, &d.DeadLetters},
		{"delete its receipts", `DELETE FROM ` + c.t.Receipts.SQL() + its, new(int64)},
		{"delete its checkpoint", `DELETE FROM ` + c.t.Checkpoints.SQL() + its, new(int64)},
	} {
		if *s.rows, err = exec(ctx, c.tx, s.what, s.query, consumer); err != nil {
			return err
		}
	}
	return forgetDead(ctx, c, consumer)
}

// forgetDead removes the consumer's name from the registrations of dead workers. A worker that has
// registered since [consumerTx.unregistered] keeps it.
func forgetDead(ctx context.Context, c consumerTx, consumer string) error {
	_, err := exec(ctx, c.tx, "forget that dead workers had code for it", `
UPDATE `+c.t.Nodes.SQL()+` SET consumers = array_remove(consumers, $1::text) WHERE $1::text = ANY (consumers) AND heartbeat_at <= clock_timestamp() - interval '1 day'`, consumer)
	return err
}
