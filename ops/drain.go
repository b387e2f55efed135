package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"
)

// drainIdle is the time without a statement, in milliseconds, after which the server ends the
// transaction of DrainWorker. The worker's heartbeats wait for that transaction.
const drainIdle = "2000"

// DrainWorker asks a worker to drain, as the worker's own Stop does. The worker begins no batch
// and claims no job. It finishes what is in flight: batches, and jobs for its
// WithShutdownTimeout at most. It hands its consumers over, and removes its row. The leader assigns
// it no further consumer. The worker's Start then waits in observe.StateDrained until the program
// stops the worker. So a supervisor does not start the process again before you end it. The worker
// notices the request within a second. If it cannot reach the database, it notices with its next
// successful try.
//
// A drain cannot be undone: only a new process runs the consumers or the jobs again. A worker of
// a build without DrainWorker goes on.
//
// The operation is recorded without an object. DrainWorker returns [ErrNotFound] if the worker
// has no row, and [ErrUnchanged] if the worker already drains.
func (c *core) DrainWorker(ctx context.Context, id uuid.UUID, by By) error {
	v := &verb{Operation{Kind: KindDrain, By: by}, "worker " + id.String() + c.what}
	return c.change(ctx, v, nil, func(tx *sql.Tx) (int64, error) {
		op, err := c.record(ctx, tx, v.Operation, drainDetail{id})
		if err == nil {
			err = c.drain(ctx, tx, id)
		}
		return op, err
	})
}

type drainDetail struct {
	Worker uuid.UUID `json:"worker"`
}

// drain marks a worker's row, and returns ErrUnchanged if the row shows that the worker already
// drains. Call drain late in the transaction, as the worker's heartbeats wait for the row.
func (c *core) drain(ctx context.Context, tx *sql.Tx, id uuid.UUID) error {
	if _, err := exec(ctx, tx, "limit the transaction", `SELECT set_config('idle_in_transaction_session_timeout', $1::text, true)`, drainIdle); err != nil {
		return err
	}
	var drains bool
	err := tx.QueryRowContext(ctx, `
WITH was AS MATERIALIZED (
	SELECT worker_id, `+c.draining+` OR drain_requested_at IS NOT NULL AS drains FROM `+c.workers.SQL()+` WHERE worker_id = $1::uuid FOR UPDATE
), asked AS (
	UPDATE `+c.workers.SQL()+` AS n SET drain_requested_at = clock_timestamp() FROM was WHERE n.worker_id = was.worker_id AND NOT was.drains
)
SELECT drains FROM was`, id.String()).Scan(&drains)
	switch {
	case noRows(err):
		return errNoWorker
	case err != nil:
		return fmt.Errorf("mark its row: %w", err)
	case drains:
		return errDraining
	}
	return nil
}
