package consume

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// confirmFailover is the pause before the second read of a server that seems to be another
// one. After a crash the frontier may not have noticed the new incarnation yet.
const confirmFailover = 250 * time.Millisecond

// failover watches where the pool of a worker leads.
type failover struct {
	*connections
	checkpoints *progress.Checkpoints
	frontier    *frontier.Frontier
	every       time.Duration // between two reads
}

// watch detects that new connections lead to another server than the frontier's
// session. An abandoned primary keeps answering that session, so the worker would see
// neither new events nor an error. The pool is right: it follows the connection string.
func (f *failover) watch(ctx context.Context) {
	for mismatches := 0; ; {
		pause := f.every
		if mismatches > 0 {
			pause = min(pause, confirmFailover)
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
		if !f.poolFailedOver(ctx) {
			mismatches = 0
			continue
		}
		f.frontier.Wake()
		if mismatches++; mismatches > 1 {
			f.frontier.Reopen()
		}
	}
}

// isOther reports whether an incarnation is another one than the frontier's. It returns false
// while the frontier knows none.
func (f *failover) isOther(incarnation string) bool {
	known := f.frontier.Value().Token
	return known != "" && f.frontier.Err() == nil && incarnation != known
}

// poolFailedOver reports whether a connection of the pool leads to another incarnation than
// the frontier's. It closes that connection: if the frontier is right, no other loop should
// use it.
func (f *failover) poolFailedOver(ctx context.Context) (failedOver bool) {
	conn := &pooled{of: f.connections}
	ctx, cancel := context.WithTimeout(ctx, f.limits.quick)
	defer cancel()
	incarnation, err := f.checkpoints.Incarnation(ctx, conn)
	if failedOver = err == nil && f.isOther(incarnation); failedOver {
		err = store.ErrIncarnation
	}
	conn.giveBack(err)
	return failedOver
}
