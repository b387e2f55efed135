package consume

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
)

const (
	// voidsKept is how many of a consumer's newest audit rows stay as they were
	// written. Each time that as many rows of void positions have come in, those
	// before become one with their neighbours.
	voidsKept = 20
	// compactChunk bounds how many rows one statement goes over.
	compactChunk = 10_000
	// compactApart is the pause after a compaction that failed.
	compactApart = 10 * time.Second
)

// voidRows counts the audit rows of void positions that a consumer's batches
// have written since they were last compacted.
type voidRows struct {
	n     atomic.Int64
	after int64 // id of the audit row up to which all is compacted; of compact's goroutine
}

// noteVoids counts what a committed batch has written.
func (c *consumerLoop) noteVoids(marks []progress.Mark) {
	for _, m := range marks {
		if m.State == progress.Void && m.Seen == nil && c.unit.voids.n.Add(1) >= voidsKept {
			c.w.compactNow.Send()
		}
	}
}

// compact keeps the audit of void positions small, for the consumers that run
// in this worker.
func (w *Worker) compact(ctx context.Context) {
	for {
		if _, ok := w.compactNow.Sleep(ctx, time.Hour); !ok {
			return
		}
		for _, u := range w.allUnits() {
			if u.voids.n.Load() < voidsKept {
				continue
			}
			if err := w.compactAudit(ctx, u); err != nil && ctx.Err() == nil {
				w.taskFailed(ctx, "compact audit", u.name, err)
				backoff.Sleep(ctx, compactApart)
				w.compactNow.Send()
			}
		}
	}
}

func (w *Worker) compactAudit(ctx context.Context, u *unit) error {
	counted := u.voids.n.Load()
	for more := true; more; {
		err := w.bounded(ctx, w.limits.read, func(ctx context.Context) (err error) {
			conn := &pooled{w: w}
			u.voids.after, more, err = w.checkpoints.Compact(ctx, conn, u.name, u.voids.after, voidsKept, compactChunk)
			conn.giveBack(err)
			return err
		})
		if err != nil {
			return err
		}
	}
	u.voids.n.Add(-counted)
	return nil
}
