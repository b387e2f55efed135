package jobs

import (
	"context"
	"database/sql"
	"time"
)

// cleanup is what is left to do of a pass over all that is old. A pass may take many
// slices of time: millions of jobs may have finished on one day.
type cleanup struct {
	expire, forget bool
	queues         []string  // whose finished jobs are still to be removed
	after          time.Time // up to when those of the first were; zero: none yet
}

func (c *cleanup) underWay() bool { return c.expire || c.forget || len(c.queues) > 0 }

// cleanUp goes on with the pass for a slice of time each. What fails is tried again in the
// next pass.
func (r *rescuer) cleanUp(ctx context.Context) {
	c := &r.cleanup
	if c.expire {
		c.expire = r.slice(ctx, "expire jobs", r.expireSome)
	}
	if len(c.queues) > 0 && !r.slice(ctx, "remove finished jobs", r.retainSome) {
		c.queues, c.after = nil, time.Time{}
	}
	if c.forget {
		c.forget = r.slice(ctx, "remove old keys", func(ctx context.Context, conn *sql.Conn) (more bool, err error) {
			n, err := r.w.queue.Forget(ctx, conn)
			return n > 0, err
		})
	}
}

// slice repeats a step while there is more, and its time is not over. It reports whether
// there is more.
func (r *rescuer) slice(ctx context.Context, name string, step func(ctx context.Context, conn *sql.Conn) (more bool, err error)) (more bool) {
	r.task(ctx, name, func(ctx context.Context, conn *sql.Conn) (err error) {
		for begin := time.Now(); ; {
			if more, err = step(ctx, conn); err != nil || !more {
				more = false
				return err
			}
			if time.Since(begin) > choreSlice {
				return nil
			}
		}
	})
	return more
}

func (r *rescuer) expireSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	ids, err := r.w.queue.Expire(ctx, conn)
	if len(ids) == 0 || err != nil {
		return false, err
	}
	tell(r.w.voice, "JobsExpired", func(o *Observer) func(int) { return o.JobsExpired }, len(ids))
	return true, nil
}

// retainSome removes finished jobs of the first queue that is left. It goes on where the
// last call has ended.
func (r *rescuer) retainSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	c := &r.cleanup
	n, after, err := r.w.queue.Retain(ctx, conn, c.queues[0], r.w.cfg.retention, c.after)
	if err != nil {
		return false, err
	}
	if c.after = after; n == 0 {
		c.queues, c.after = c.queues[1:], time.Time{}
	}
	return len(c.queues) > 0, nil
}
