package consume

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/store"
)

// confirmElsewhere is the pause before a second look at a server that seems to
// be another one: after a crash the frontier may not have noticed yet.
const confirmElsewhere = 250 * time.Millisecond

// watchServer notices that new connections lead to another server than the
// frontier's session. A primary that was abandoned goes on answering there, so
// the worker would see no events any more, and no error. The pool is right: it
// leads where the connection string does.
func (w *Worker) watchServer(ctx context.Context) {
	for strange := 0; ; {
		pause := w.cfg.HeartbeatInterval
		if strange > 0 {
			pause = min(pause, confirmElsewhere)
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
		if !w.isPoolElsewhere(ctx) {
			strange = 0
			continue
		}
		w.frontier.Wake()
		if strange++; strange > 1 {
			w.frontier.Reopen()
		}
	}
}

// isElsewhere reports whether an incarnation is another one than the frontier
// knows. While the frontier knows none, nobody can tell.
func (w *Worker) isElsewhere(incarnation string) bool {
	known := w.frontier.Value().Token
	return known != "" && w.frontier.Err() == nil && incarnation != known
}

// isPoolElsewhere reports whether a connection of the pool leads to another
// incarnation than the frontier knows. It closes that connection: if it is the
// frontier which is right, nobody else should use it.
func (w *Worker) isPoolElsewhere(ctx context.Context) (elsewhere bool) {
	conn := &pooled{w: w}
	ctx, cancel := context.WithTimeout(ctx, w.limits.quick)
	defer cancel()
	incarnation, err := w.checkpoints.Incarnation(ctx, conn)
	if elsewhere = err == nil && w.isElsewhere(incarnation); elsewhere {
		err = store.ErrIncarnation
	}
	conn.giveBack(err)
	return elsewhere
}
