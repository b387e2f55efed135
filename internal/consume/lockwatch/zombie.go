package lockwatch

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
)

// endZombie is the task of EndZombie.
const endZombie = "end dead batch"

// EndZombie finds the batch that holds the unit's row, and ends that batch if two calls in a
// row find that its worker is dead. Otherwise the batch would keep its unit until the server
// ends its idle session.
//
// EndZombie does not need the session of the waiting guard. The locks of a batch name its
// worker, also through a proxy that makes up pids.
func (w *Guards) EndZombie(ctx context.Context, session int64) error {
	if w.row.Dead == nil {
		return nil
	}
	z, err := w.FindZombie(ctx, session)
	if w.zombie.confirms(z, time.Now()) {
		return w.end(ctx, z)
	}
	return err
}

// suspicion is the batch that every poll since a time has found.
type suspicion struct {
	progress.OpenBatch
	since time.Time
}

// confirms reports whether the polls have found the same batch for at least PollEvery.
func (s *suspicion) confirms(z progress.OpenBatch, now time.Time) bool {
	if z != s.OpenBatch {
		*s = suspicion{z, now}
	}
	return z != (progress.OpenBatch{}) && now.Sub(s.since) >= PollEvery
}

// FindZombie returns the batch that holds the unit's row if its worker is dead. A batch of
// this worker is an abandoned one: the loop has begun another.
func (w *Guards) FindZombie(ctx context.Context, session int64) (progress.OpenBatch, error) {
	z, err := w.row.Checkpoints.OpenBatch(ctx, w.row.DB, w.row.Unit, session)
	if err != nil || z == (progress.OpenBatch{}) || z.Signature == progress.Signature(w.row.Worker) {
		return z, err
	}
	dead, err := w.row.Dead(ctx, z.Worker)
	if err != nil || !dead {
		return progress.OpenBatch{}, err
	}
	return z, nil
}

// end continues after ctx ends. The guard's wait, and with it ctx, ends as soon as the batch
// is gone, before the answer of this statement arrives.
func (w *Guards) end(ctx context.Context, z progress.OpenBatch) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), PollLimit)
	defer cancel()
	ended, err := w.row.Checkpoints.EndBatch(ctx, w.row.DB, w.row.Unit, z)
	if ended {
		w.row.Ended(z)
	}
	return err
}
