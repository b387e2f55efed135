package consume

import (
	"context"
	"fmt"

	"github.com/pgfrontier/worker/internal/runtime"
)

// checkPooling returns an error for a transaction-pooling proxy that breaks the worker, and
// for a nested pool.
func (w *Worker) checkPooling(ctx context.Context) (err error) {
	if w.pooling, w.nestedPool, err = w.db.CheckPooling(ctx, w.cfg.LeaderStrategy == LeaderStrategyAdvisory); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// explain adds the remedy to some errors of the database.
func explain(err error) error { return runtime.Explain("worker", err) }
