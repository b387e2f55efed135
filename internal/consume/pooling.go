package consume

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

// checkPooling refuses what a transaction-pooling proxy breaks, and a pool within a pool.
func (w *Worker) checkPooling(ctx context.Context) (err error) {
	if w.pooling, w.lent, err = w.db.CheckPooling(ctx, w.cfg.LeaderStrategy == LeaderStrategyAdvisory); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// explain adds the remedy to an error that a proxy causes which was not there
// at the start, and to that of a standby. Not to a protocol violation (08P01):
// that is also what PgBouncer calls a server that has died.
func explain(err error) error {
	if pgdriver.IsStandby(err) && !errors.Is(err, ErrStandby) {
		return fmt.Errorf("worker: %w: %w", ErrStandby, err)
	}
	if !pgdriver.IsLostStatement(err) || errors.Is(err, ErrPreparedStatements) {
		return err
	}
	return fmt.Errorf("worker: %w: %w", ErrPreparedStatements, err)
}
