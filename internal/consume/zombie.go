package consume

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// endZombies returns a function that finds the batch that holds the consumer's row. The
// function ends that batch if two polls in a row find that its worker is dead. Otherwise
// the batch would keep its consumer until the server ends its idle session.
//
// The function does not need the session of the waiting guard. The locks of a batch name
// its worker, also through a proxy that makes up pids.
//
// A suspicion outlives the guard: a statement_timeout may end each guard before the second
// poll.
func (c *consumerLoop) endZombies(session int64) (end func(ctx context.Context) error) {
	if c.w.cfg.LeaderStrategy != LeaderStrategyAdvisory {
		return func(context.Context) error { return nil } // several workers may share a session
	}
	return func(ctx context.Context) error {
		z, err := c.findZombie(ctx, session)
		if c.zombie.confirms(z, time.Now()) {
			return c.endZombie(ctx, z)
		}
		return err
	}
}

// suspicion is the batch that every poll since a time has found.
type suspicion struct {
	progress.OpenBatch
	since time.Time
}

// confirms reports whether the polls have found the same batch for at least
// pollSessionEvery.
func (s *suspicion) confirms(z progress.OpenBatch, now time.Time) bool {
	if z != s.OpenBatch {
		*s = suspicion{z, now}
	}
	return z != (progress.OpenBatch{}) && now.Sub(s.since) >= pollSessionEvery
}

// findZombie returns the batch that holds the consumer's row if its worker is dead. A batch
// of this worker is an abandoned one: the loop has begun another.
func (c *consumerLoop) findZombie(ctx context.Context, session int64) (progress.OpenBatch, error) {
	z, err := c.w.checkpoints.OpenBatch(ctx, c.w.db, c.unit.name, session)
	if err != nil || z == (progress.OpenBatch{}) || z.Signature == progress.Signature(c.w.id) {
		return z, err
	}
	dead, err := c.w.coord.Dead(ctx, c.w.db.DB, z.Worker)
	if err != nil || !dead {
		return progress.OpenBatch{}, err
	}
	return z, nil
}

// endZombie continues after ctx ends. The guard's wait, and with it ctx, ends as soon as
// the batch is gone, before the answer of this statement arrives.
func (c *consumerLoop) endZombie(ctx context.Context, z progress.OpenBatch) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollSessionLimit)
	defer cancel()
	ended, err := c.w.checkpoints.EndBatch(ctx, c.w.db, c.unit.name, z)
	if ended {
		c.w.observers.Notify(observe.DeadBatchEnded{Consumer: c.unit.name, DeadWorker: z.Worker, PID: z.Session})
	}
	return err
}
