package jobs

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/turn"
)

const (
	// choreTick is how often the leader looks whether there is a chore.
	choreTick = 250 * time.Millisecond
	// choresEvery is how often it does them.
	choresEvery = 10 * time.Second
	// choreSlice bounds for how long it removes old rows of one kind before others have
	// their turn.
	choreSlice = 500 * time.Millisecond
)

// chores are what is not urgent and that one of all workers must do, while this one
// leads: it removes what is old, and looks for what was forgotten. Nothing depends on
// that it is one only.
type chores struct {
	w     *Worker
	turn  turn.Turn
	at    time.Time // the next
	pass  pass
	token atomic.Bool // look for it now: the server may have crashed

	expires some
}

// run does them until ctx ends.
func (c *chores) run(ctx context.Context) {
	for backoff.Sleep(ctx, choreTick) {
		now := time.Now()
		if c.token.Swap(false) {
			c.task(ctx, "keep the token", c.w.plantToken)
		}
		if !c.w.coord.Status().Leader {
			c.pass, c.at = pass{}, time.Time{} // a worker that leads again does them at once, and finds whom its rescuer forgot
			continue
		}
		if now.After(c.at) {
			c.at = now.Add(c.w.choreInterval)
			c.begin(ctx)
		}
		c.cleanUp(ctx)
	}
}

func (c *chores) task(ctx context.Context, name string, f func(ctx context.Context, conn *sql.Conn) error) {
	c.w.task(ctx, &c.turn, name, f)
}

// begin does what is done at once, and begins a pass over what is old.
func (c *chores) begin(ctx context.Context) {
	c.task(ctx, "look for jobs of workers that are gone", func(ctx context.Context, conn *sql.Conn) error {
		ids, err := c.w.queue.Claimers(ctx, conn)
		c.w.rescuer.suspect(ids)
		return err
	})
	c.task(ctx, "keep the token", c.w.plantToken)
	if !c.pass.underWay() {
		c.task(ctx, "look for finished jobs", func(ctx context.Context, conn *sql.Conn) (err error) {
			c.pass.queues, err = c.w.queue.Retained(ctx, conn)
			return err
		})
		c.pass.expire, c.pass.forget = true, true
	}
	c.task(ctx, "remove notes of events", func(ctx context.Context, conn *sql.Conn) error {
		there, err := c.w.queue.HasEvents(ctx, conn, c.w.events)
		if !there || err != nil {
			return err
		}
		return c.w.queue.Raise(ctx, conn, c.w.events)
	})
}

// plantToken puts a token into its table after the server has emptied it: only with
// one is a free lock a sign of death.
func (w *Worker) plantToken(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, incarnation.PlantOnce(w.tables.Token), uuid.NewString())
	return err
}

// pass is what is left to do of a pass over all that is old. It may take many slices of
// time: millions of jobs may have finished on one day.
type pass struct {
	expire, forget bool
	queues         []string  // whose finished jobs are still to be removed
	after          time.Time // up to when those of the first were; zero: none yet
}

func (p *pass) underWay() bool { return p.expire || p.forget || len(p.queues) > 0 }

// cleanUp goes on with the pass for a slice of time each. What fails is tried again in the
// next pass.
func (c *chores) cleanUp(ctx context.Context) {
	p := &c.pass
	if p.expire {
		p.expire = c.slice(ctx, expireTask, c.expireSome)
	}
	if len(p.queues) > 0 && !c.slice(ctx, "remove finished jobs", c.retainSome) {
		p.queues, p.after = nil, time.Time{}
	}
	if p.forget {
		p.forget = c.slice(ctx, "remove old keys", func(ctx context.Context, conn *sql.Conn) (more bool, err error) {
			n, err := c.w.queue.Forget(ctx, conn)
			return n > 0, err
		})
	}
}

// slice repeats a step while there is more, and its time is not over. It reports whether
// there is more.
func (c *chores) slice(ctx context.Context, name string, step func(ctx context.Context, conn *sql.Conn) (more bool, err error)) (more bool) {
	c.task(ctx, name, func(ctx context.Context, conn *sql.Conn) (err error) {
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

func (c *chores) expireSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	expired := 0
	n, err := c.expires.take(ctx, c.w, expireTask, func(out []int64, most int) ([]int64, error) {
		return c.w.queue.Expirable(ctx, conn, out, most)
	}, func(jobs []int64) (int, error) {
		ids, err := c.w.queue.Expire(ctx, conn, jobs)
		expired += len(ids)
		return len(ids), err
	})
	if expired > 0 {
		tell(c.w.voice, "JobsExpired", func(o *Observer) func(int) { return o.JobsExpired }, expired)
	}
	return n > 0, err
}

const expireTask = "expire jobs"

// retainSome removes finished jobs of the first queue that is left. It goes on where the
// last call has ended.
func (c *chores) retainSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	p := &c.pass
	n, after, err := c.w.queue.Retain(ctx, conn, p.queues[0], c.w.cfg.retention, p.after)
	if err != nil {
		return false, err
	}
	if p.after = after; n == 0 {
		p.queues, p.after = p.queues[1:], time.Time{}
	}
	return len(p.queues) > 0, nil
}
