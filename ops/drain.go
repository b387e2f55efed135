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

// drainIdle, in milliseconds, is after what silence the server ends the drain of a worker,
// whose heartbeats wait for the change meanwhile.
const drainIdle = "2000"

// DrainWorker asks a worker to drain, as its own Stop does: it begins no batch, finishes those
// in hand and hands each consumer over, and takes itself off the list. From now on it is given
// no consumer. Its Start then waits, in worker.StateDrained, until the program stops it: so
// nothing starts its process again before you end that. It notices within a second,
// or with its next try if it does not reach the database.
//
// There is no way back: what has ended begins again in a new process only. A worker of a
// build from before there was DrainWorker keeps the consumers that it has.
//
// The operation is recorded with an empty Consumer. DrainWorker returns [ErrNoWorker] if the
// worker has no row, and [ErrDraining] if it drains already.
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

// DrainWorker asks a worker of jobs to drain, as its own Stop does: it claims no job, waits
// for those in hand for its WithShutdownTimeout at most, and takes itself off the list. All else
// is as with [Operator.DrainWorker].
func (o *Jobs) DrainWorker(ctx context.Context, id uuid.UUID, by By) error {
	err := by.check()
	if err == nil {
		err = audited(ctx, o.db, o.t.Changes, o.dry, func(tx *sql.Tx) (int64, error) {
			op, err := o.record(ctx, tx, KindDrain, about{}, by, drainDetail{id})
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

// drain marks a worker's row, unless that shows that it drains: or is what else shows it.
// It comes late in its transaction, as the worker's heartbeats wait for the row.
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
