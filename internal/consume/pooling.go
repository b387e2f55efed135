package consume

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// checkPooling returns an error for a transaction-pooling proxy that breaks the worker, and
// for a nested pool.
func (w *Worker) checkPooling(ctx context.Context) (err error) {
	if w.pooling, w.nestedPool, err = w.db.CheckPooling(ctx, w.cfg.LeaderStrategy == LeaderStrategyAdvisory); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// explain adds the remedy to an error of a proxy that was added after the start, and to the
// error of a standby. It adds none to a protocol violation (08P01): PgBouncer also reports
// a dead server that way.
func explain(err error) error {
	if pgdriver.IsStandby(err) && !errors.Is(err, ErrStandby) {
		return fmt.Errorf("worker: %w: %w", ErrStandby, err)
	}
	if !pgdriver.IsLostStatement(err) || errors.Is(err, ErrPreparedStatements) {
		return err
	}
	return fmt.Errorf("worker: %w: %w", ErrPreparedStatements, err)
}
