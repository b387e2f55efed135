package worker

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

// cleanChunk bounds a clean-up statement, so that it holds no locks for long.
const cleanChunk = 10_000

// retain deletes audit rows that were closed longer than GapSkipRetention
// ago, on the leader.
func (w *Worker) retain(ctx context.Context) {
	keep := w.cfg.GapSkipRetention
	if keep == 0 {
		return
	}
	for backoff.Sleep(ctx, min(max(keep/10, 100*time.Millisecond), time.Hour)) {
		for more := w.coord.Status().Leader; more && ctx.Err() == nil; {
			var n int64
			err := w.bounded(ctx, w.limits.read, func(ctx context.Context) (err error) {
				n, err = w.checkpoints.Clean(ctx, w.db, keep)
				return err
			})
			w.taskFailed(ctx, "clean audit", "", err)
			more = n == cleanChunk
		}
	}
}

// Clean deletes at most cleanChunk closed audit rows that are older than keep,
// and returns how many it deleted.
func (c checkpoints) Clean(ctx context.Context, db *sql.DB, keep time.Duration) (int64, error) {
	r, err := db.ExecContext(ctx, c.clean, strconv.FormatInt(keep.Milliseconds(), 10), cleanChunk)
	if err != nil {
		return 0, fmt.Errorf("worker: delete old rows of the audit: %w", err)
	}
	return r.RowsAffected()
}
