package consume

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/progress"
)

const (
	// voidsKept is the number of a consumer's newest audit rows that stay unchanged. After
	// as many new rows of void positions, the older rows are merged with their neighbours.
	voidsKept = 20
	// compactChunk limits the rows that one statement reads.
	compactChunk = 10_000
	// compactApart is the pause after a failed compaction.
	compactApart = 10 * time.Second
)

// voidRows counts the audit rows of void positions written since the last compaction.
type voidRows struct {
	n     atomic.Int64
	after int64 // id of the last compacted audit row; owned by compact's goroutine
}

// count counts the void positions of a committed batch. It reports whether they are to be
// compacted.
func (v *voidRows) count(marks []progress.Mark) (full bool) {
	for _, m := range marks {
		if m.State == progress.Void && m.Seen == nil && v.n.Add(1) >= voidsKept {
			full = true
		}
	}
	return full
}

// compact merges neighbouring audit rows of void positions, for the consumers that run in
// this worker.
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
		err := w.onPooled(ctx, w.limits.read, func(ctx context.Context, conn *pooled) (err error) {
			u.voids.after, more, err = w.checkpoints.Compact(ctx, conn, u.name, u.voids.after, voidsKept, compactChunk)
			return err
		})
		if err != nil {
			return err
		}
	}
	u.voids.n.Add(-counted)
	return nil
}
