package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
)

// drainIdle is the time without a statement, in milliseconds, after which the server ends the
// transaction of DrainWorker. The worker's heartbeats wait for that transaction.
const drainIdle = "2000"

// DrainWorker asks a worker to drain, as the worker's own Stop does. The worker begins no
// batch, finishes the batches in flight, hands each consumer over, and removes its row. The
// leader assigns it no further consumer. The worker's Start then waits in observe.StateDrained
// until the program stops the worker. So a supervisor does not start the process again before
// you end it. The worker notices the request within a second. If it cannot reach the database,
// it notices with its next successful try.
//
// A drain cannot be undone: only a new process runs the consumers again. A worker of a build
// without DrainWorker keeps its consumers.
//
// The operation is recorded with an empty Consumer. DrainWorker returns [ErrNoWorker] if the
// worker has no row, and [ErrDraining] if the worker already drains.
func (o *Operator) DrainWorker(ctx context.Context, id uuid.UUID, by By) error {
	err := by.check()
	if err == nil {
		err = audited(ctx, o.db, o.t.Changes, o.dry, func(tx *sql.Tx) (int64, error) {
			op, err := o.record(ctx, tx, KindDrain, "", by, drainDetail{id})
			if err == nil {
				err = drain(ctx, tx, o.t.Nodes, "draining OR", id)
			}
			return op, err
		})
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("ops: drain worker %s: %w", id, explain(err)))
	}
	return nil
}

// DrainWorker asks a worker of jobs to drain, as the worker's own Stop does. The worker claims
// no job, waits for the jobs in flight for its WithShutdownTimeout at most, and removes its
// row. Everything else is as in [Operator.DrainWorker].
func (o *Jobs) DrainWorker(ctx context.Context, id uuid.UUID, by By) error {
	err := by.check()
	if err == nil {
		err = audited(ctx, o.db, o.t.Changes, o.dry, func(tx *sql.Tx) (int64, error) {
			op, err := o.record(ctx, tx, KindDrain, target{}, by, drainDetail{id})
			if err == nil {
				err = drain(ctx, tx, o.t.Workers, "", id)
			}
			return op, err
		})
	}
	if err != nil {
		return errtext.Of(fmt.Errorf("ops: drain worker %s of jobs: %w", id, o.explain(err)))
	}
	return nil
}

type drainDetail struct {
	Worker uuid.UUID `json:"worker"`
}

// drain marks a worker's row, and returns ErrDraining if the row shows that the worker already
// drains. or is a further SQL condition under which it drains. Call drain late in the
// transaction, as the worker's heartbeats wait for the row.
func drain(ctx context.Context, tx *sql.Tx, workers ident.Table, or string, id uuid.UUID) error {
	if _, err := exec(ctx, tx, "limit the transaction", `SELECT set_config('idle_in_transaction_session_timeout', $1::text, true)`, drainIdle); err != nil {
		return err
	}
	var drains bool
	err := tx.QueryRowContext(ctx, `
WITH was AS MATERIALIZED (
	SELECT worker_id, `+or+` drain_requested_at IS NOT NULL AS drains FROM `+workers.SQL()+` WHERE worker_id = $1::uuid FOR UPDATE
), asked AS (
	UPDATE `+workers.SQL()+` AS n SET drain_requested_at = clock_timestamp() FROM was WHERE n.worker_id = was.worker_id AND NOT was.drains
)
SELECT drains FROM was`, id.String()).Scan(&drains)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return ErrNoWorker
	case err != nil:
		return fmt.Errorf("mark its row: %w", err)
	case drains:
		return ErrDraining
	}
	return nil
}
