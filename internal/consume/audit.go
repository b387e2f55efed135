package consume

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/wakeup"
)

const (
	// compactChunk limits the rows that one statement reads.
	compactChunk = 10_000
	// compactApart is the pause after a failed compaction.
	compactApart = 10 * time.Second
)

// audit keeps the audit table small.
type audit struct {
	*env
	now   *wakeup.Signal // wakes compact
	leads func() bool    // reports whether this worker is the leader
	keep  time.Duration  // GapSkipRetention; 0: no row is deleted
}

// compact merges neighbouring audit rows of void positions, for the consumers that run in
// this worker.
func (a *audit) compact(ctx context.Context) {
	for {
		if _, ok := a.now.Sleep(ctx, time.Hour); !ok {
			return
		}
		for _, u := range a.allUnits() {
			if u.voids.n.Load() < voidsKept {
				continue
			}
			if err := a.compactUnit(ctx, u); err != nil && ctx.Err() == nil {
				a.taskFailed(ctx, "compact audit", u.name, err)
				backoff.Sleep(ctx, compactApart)
				a.now.Send()
			}
		}
	}
}

func (a *audit) compactUnit(ctx context.Context, u *unit) error {
	counted := u.voids.n.Load()
	for more := true; more; {
		err := a.onPooled(ctx, a.limits.read, func(ctx context.Context, conn *pooled) (err error) {
			u.voids.after, more, err = a.checkpoints.Compact(ctx, conn, u.name, u.voids.after, voidsKept, compactChunk)
			return err
		})
		if err != nil {
			return err
		}
	}
	u.voids.n.Add(-counted)
	return nil
}

// retain deletes, on the leader, the audit rows that were closed longer ago than a.keep.
func (a *audit) retain(ctx context.Context) {
	if a.keep == 0 {
		return
	}
	for backoff.Sleep(ctx, min(max(a.keep/10, 100*time.Millisecond), time.Hour)) {
		for more := a.leads(); more && ctx.Err() == nil; {
			var n int64
			err := a.onPooled(ctx, a.limits.read, func(ctx context.Context, conn *pooled) (err error) {
				n, err = a.checkpoints.Clean(ctx, conn, a.keep)
				return err
			})
			a.taskFailed(ctx, "clean audit", "", err)
			more = n == progress.CleanChunk
		}
	}
}
