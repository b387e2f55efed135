package consume

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/store"
)

// confirmFailover is the pause before the second read of a server that seems to be another
// one. After a crash the frontier may not have noticed the new incarnation yet.
const confirmFailover = 250 * time.Millisecond

// watchServer detects that new connections lead to another server than the frontier's
// session. An abandoned primary keeps answering that session, so the worker would see
// neither new events nor an error. The pool is right: it follows the connection string.
func (w *Worker) watchServer(ctx context.Context) {
	for mismatches := 0; ; {
		pause := w.cfg.HeartbeatInterval
		if mismatches > 0 {
			pause = min(pause, confirmFailover)
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
		if !w.poolFailedOver(ctx) {
			mismatches = 0
			continue
		}
		w.frontier.Wake()
		if mismatches++; mismatches > 1 {
			w.frontier.Reopen()
		}
	}
}

// isOtherIncarnation reports whether an incarnation is another one than the frontier's. It
// returns false while the frontier knows none.
func (w *Worker) isOtherIncarnation(incarnation string) bool {
	known := w.frontier.Value().Token
	return known != "" && w.frontier.Err() == nil && incarnation != known
}

// poolFailedOver reports whether a connection of the pool leads to another incarnation than
// the frontier's. It closes that connection: if the frontier is right, no other loop should
// use it.
func (w *Worker) poolFailedOver(ctx context.Context) (failedOver bool) {
	conn := &pooled{of: &w.connections}
	ctx, cancel := context.WithTimeout(ctx, w.limits.quick)
	defer cancel()
	incarnation, err := w.checkpoints.Incarnation(ctx, conn)
	if failedOver = err == nil && w.isOtherIncarnation(incarnation); failedOver {
		err = store.ErrIncarnation
	}
	conn.giveBack(err)
	return failedOver
}
