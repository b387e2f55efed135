package worker

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
)

// idleConns is how many connections a pool should keep for a worker with so
// many consumers: those that it keeps for itself, those of its occasional
// statements, and for each consumer one for its batch and two to read ahead.
func idleConns(consumers int) int { return 4 + 3*consumers }

// watchPool says, once, if between two looks the pool closes more than ten
// connections a second because it keeps so few: database/sql keeps two, and each
// other costs the server a new process as soon as somebody needs it again.
func (w *Worker) watchPool(ctx context.Context) {
	every := min(2*w.cfg.HeartbeatInterval, 10*time.Second)
	tolerated := max(1, int64(10*every/time.Second))
	for before := w.db.Stats().MaxIdleClosed; backoff.Sleep(ctx, every); {
		closed := w.db.Stats().MaxIdleClosed
		if closed-before > tolerated {
			w.cfg.Logger.Info(ctx, "the pool closes connections that are needed again at once, as it keeps few idle ones: raise db.SetMaxIdleConns",
				"closed", closed-before, "within", every, "recommended", idleConns(len(w.units)))
			return
		}
		before = closed
	}
}
