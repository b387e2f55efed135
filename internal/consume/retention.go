package consume

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
)

// retain deletes, on the leader, the audit rows that were closed longer than
// GapSkipRetention ago.
func (w *Worker) retain(ctx context.Context) {
	keep := w.cfg.GapSkipRetention
	if keep == 0 {
		return
	}
	for backoff.Sleep(ctx, min(max(keep/10, 100*time.Millisecond), time.Hour)) {
		for more := w.coord.Status().Leader; more && ctx.Err() == nil; {
			var n int64
			err := w.onPooled(ctx, w.limits.read, func(ctx context.Context, conn *pooled) (err error) {
				n, err = w.checkpoints.Clean(ctx, conn, keep)
				return err
			})
			w.taskFailed(ctx, "clean audit", "", err)
			more = n == progress.CleanChunk
		}
	}
}
