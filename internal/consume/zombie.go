package consume

import (
	"context"
	"time"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/observe"
)

// endZombies returns what looks for the batch that holds the consumer's row,
// and ends it if two looks in a row find that its worker is dead. The batch
// would keep its consumer until the server ends it for being idle.
//
// It does not need the session of the guard that waits: the locks of a batch
// say whose it is, also through a proxy that makes up its clients' sessions.
//
// What a look has found outlives the guard: a statement_timeout may end each guard
// before the second look.
func (c *consumerLoop) endZombies(session int64) (look func(ctx context.Context) error) {
	if c.w.cfg.LeaderStrategy != LeaderStrategyAdvisory {
		return func(context.Context) error { return nil } // a session may be many workers'
	}
	return func(ctx context.Context) error {
		z, err := c.findZombie(ctx, session)
		if c.zombie.confirms(z, time.Now()) {
			return c.endZombie(ctx, z)
		}
		return err
	}
}

// suspicion is the batch that each look since a time has found.
type suspicion struct {
	progress.OpenBatch
	since time.Time
}

// confirms reports whether the looks find the same batch for a while.
func (s *suspicion) confirms(z progress.OpenBatch, now time.Time) bool {
	if z != s.OpenBatch {
		*s = suspicion{z, now}
	}
	return z != (progress.OpenBatch{}) && now.Sub(s.since) >= pollSessionEvery
}

// findZombie returns the batch that holds the consumer's row, if its worker
// is dead. One of this worker is given up: the loop has begun another.
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

// endZombie lasts longer than ctx, which ends with the guard's wait: as soon as
// the batch is gone, and before the answer is here.
func (c *consumerLoop) endZombie(ctx context.Context, z progress.OpenBatch) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollSessionLimit)
	defer cancel()
	ended, err := c.w.checkpoints.EndBatch(ctx, c.w.db, c.unit.name, z)
	if ended {
		c.w.observers.Notify(observe.DeadBatchEnded{Consumer: c.unit.name, DeadWorker: z.Worker, PID: z.Session})
	}
	return err
}
