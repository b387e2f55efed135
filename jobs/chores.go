package jobs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/serial"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
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
	turn  watchdog.Iteration
	at    time.Time // the next
	pass  pass
	token atomic.Bool // look for it now: the server may have crashed

	expires some[int64]
	retains some[int64]
	forgets some[string] // keys of Once

	unserved   sighted // queues without a worker
	orphans    sighted // emitters without a checkpoint
	unadvanced int     // how often nobody was seen to advance flows
}

func newChores(w *Worker) *chores {
	return &chores{w: w, expires: some[int64]{what: refusedJob}, retains: some[int64]{what: refusedJob}, forgets: some[string]{what: refusedKey}}
}

// refusedKey names a key of Once that the database refuses to remove.
func refusedKey(w *Worker, key string, err error) error {
	return fmt.Errorf("key %s: the database refuses to remove it from %s, and others go on: mend what refuses it, such as a trigger or a foreign key: %w", errtext.Value(key), w.tables.Once, errtext.Of(err))
}

// run does them until ctx ends.
func (c *chores) run(ctx context.Context) {
	for backoff.Sleep(ctx, choreTick) {
		now := time.Now()
		if c.token.Swap(false) {
			c.task(ctx, "keep the token", c.w.plantToken)
		}
		if !c.w.coord.Status().Leader {
			c.pass, c.at = pass{}, time.Time{} // a worker that leads again does them at once
			continue
		}
		// The rescuer may have seen a loss of leadership that was shorter than a tick.
		if forgot := c.w.rescuer.forgot.Swap(false); forgot || now.After(c.at) {
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
		ids, err := c.w.queue.Claimers(ctx, c.w.planned(conn, conn))
		c.w.rescuer.suspect(ids)
		return err
	})
	c.task(ctx, "keep the token", c.w.plantToken)
	c.task(ctx, "compare the sequence of jobs", func(ctx context.Context, conn *sql.Conn) error {
		c.w.compareSequence(ctx, conn)
		return nil
	})
	c.task(ctx, "look for queues without a worker", c.lookForUnserved)
	c.task(ctx, "look for flows without a worker", c.lookForUnadvanced)
	c.task(ctx, orphansTask, c.lookForOrphans)
	if !c.pass.underWay() {
		c.task(ctx, "look for finished jobs", func(ctx context.Context, conn *sql.Conn) (err error) {
			c.pass.queues, err = c.w.queue.Retained(ctx, c.w.planned(conn, conn))
			return err
		})
		c.pass.expire, c.pass.forget, c.pass.notes = true, true, true
	}
}

// sightings is how often in a row something is seen before it is told: a worker that starts, or
// that has just left for another one, is no reason.
const sightings = 2

// sighted is how often in a row something was seen, by its name.
type sighted map[string]int

// now records what is seen, and returns what is to be told: each once.
func (s *sighted) now(names []string) (tell []string) {
	was := *s
	*s = make(sighted, len(names))
	for _, name := range names {
		if (*s)[name] = was[name] + 1; (*s)[name] == sightings {
			tell = append(tell, name)
		}
	}
	return tell
}

// lookForUnserved tells once of each queue whose jobs are due and that no worker serves.
func (c *chores) lookForUnserved(ctx context.Context, conn *sql.Conn) error {
	queues, err := c.w.queue.Unserved(ctx, c.w.planned(conn, conn))
	if err != nil {
		return err
	}
	for _, name := range c.unserved.now(queues) {
		c.w.taskFailed("look for queues without a worker", fmt.Errorf("queue %s has jobs that are due, and no worker serves it: start one that has it, by WithQueue", errtext.Value(name)))
	}
	return nil
}

// lookForOrphans tells once of each consumer whose keys of EnqueueFor no worker removes.
func (c *chores) lookForOrphans(ctx context.Context, conn *sql.Conn) error {
	emitters, err := c.w.queue.Orphans(ctx, c.w.planned(conn, conn), c.w.events)
	if err != nil {
		return err
	}
	for _, name := range c.orphans.now(emitters) {
		c.w.taskFailed(orphansTask, fmt.Errorf("the rows of consumer %s in %s, written by EnqueueFor, are not removed, since %s has no such consumer: if its checkpoints are in another table, name that by WithCheckpointsTable; if it is retired, and no other goes on for it by EmitAs, its rows may be deleted", errtext.Value(name), c.w.tables.Emitted, c.w.events.Checkpoints))
	}
	return nil
}

// lookForUnadvanced tells once that runs of flows have not ended and no worker advances them.
func (c *chores) lookForUnadvanced(ctx context.Context, conn *sql.Conn) error {
	unadvanced, err := c.w.queue.Unadvanced(ctx, c.w.planned(conn, conn))
	switch {
	case err != nil:
		return err
	case !unadvanced:
		c.unadvanced = 0
		return nil
	}
	if c.unadvanced++; c.unadvanced == sightings {
		return errors.New("runs of flows have not ended, and no worker advances them, so they stand still: give flow.Advance() to the workers")
	}
	return nil
}

// compareSequence tells if the ids of new jobs come again. Such a job runs, and what becomes
// of it cannot be stored. An error of the look is no reason not to start.
func (w *Worker) compareSequence(ctx context.Context, conn *sql.Conn) {
	found, err := serial.Find(ctx, conn, serial.Enqueued(w.tables))
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("ids of jobs come again: %v: raise it (pgfrontier sequences --raise, or RaiseSequences of ops.Jobs)", found[0])
	}
	w.taskFailed("compare the sequence of jobs", err)
}

// plantToken puts a token into its table after the server has emptied it: only with
// one is a free lock a sign of death.
func (w *Worker) plantToken(ctx context.Context, conn *sql.Conn) error {
	return pgdriver.Repeated(func() error {
		_, err := conn.ExecContext(ctx, incarnation.InsertTokenOnce(w.tables.Token), uuid.NewString())
		return err
	})
}

// pass is what is left to do of a pass over all that is old. It may take many slices of
// time: millions of jobs may have finished on one day.
type pass struct {
	expire, forget bool
	notes          bool           // of events
	queues         []string       // whose finished jobs are still to be removed
	after          queue.Finished // the last one of the first queue that was looked at; zero: none yet
}

func (p *pass) underWay() bool { return p.expire || p.forget || p.notes || len(p.queues) > 0 }

// cleanUp goes on with the pass for a slice of time each. What fails is tried again in the
// next pass.
func (c *chores) cleanUp(ctx context.Context) {
	p := &c.pass
	if p.expire {
		p.expire = c.slice(ctx, expireTask, c.expireSome)
	}
	if len(p.queues) > 0 && !c.slice(ctx, retainTask, c.retainSome) {
		p.queues, p.after = nil, queue.Finished{}
	}
	if p.forget {
		p.forget = c.slice(ctx, forgetTask, c.forgetSome)
	}
	if p.notes {
		p.notes = c.slice(ctx, "remove notes of events", c.raiseSome)
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
		return c.w.queue.Expirable(ctx, c.w.planned(conn, conn), out, most)
	}, func(jobs []int64) (int, error) {
		ids, err := c.w.queue.Expire(ctx, c.w.planned(conn, conn), jobs)
		expired += len(ids)
		return len(ids), err
	})
	if expired > 0 {
		c.w.observers.Notify(observe.JobsExpired{Jobs: expired})
	}
	return n > 0, err
}

const (
	expireTask = "expire jobs"
	retainTask = "remove finished jobs"
	forgetTask = "remove old keys"

	orphansTask = "look for keys of EnqueueFor that no worker removes"
)

// retainSome removes finished jobs of the first queue that is left. It goes on where the
// last call has ended.
func (c *chores) retainSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	p := &c.pass
	last := p.after
	n, err := c.retains.take(ctx, c.w, retainTask, func(out []int64, most int) (ids []int64, err error) {
		ids, last, err = c.w.queue.Retainable(ctx, c.w.planned(conn, conn), p.queues[0], c.w.cfg.retention, p.after, out, most)
		return ids, err
	}, func(jobs []int64) (int, error) { return c.w.queue.Remove(ctx, c.w.planned(conn, conn), jobs) })
	if pgdriver.FaultOf(err) != pgdriver.FaultServer { // nothing of this queue can be removed
		c.w.taskFailed(retainTask, err)
		n, last, err = 0, p.after, nil
	}
	if err != nil {
		return false, err
	}
	if n == 0 && last == p.after { // there is nothing more: what is locked was passed over
		p.queues, last = p.queues[1:], queue.Finished{}
	}
	p.after = last
	return len(p.queues) > 0, nil
}

// raiseSome removes notes of events.
func (c *chores) raiseSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	there, err := c.w.queue.HasEvents(ctx, c.w.planned(conn, conn), c.w.events)
	if !there || err != nil {
		return false, err
	}
	n, err := c.w.queue.Raise(ctx, c.w.planned(conn, conn), c.w.events)
	return n > 0, err
}

func (c *chores) forgetSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	n, err := c.forgets.take(ctx, c.w, forgetTask, func(out []string, most int) ([]string, error) {
		return c.w.queue.Forgettable(ctx, c.w.planned(conn, conn), out, most)
	}, func(keys []string) (int, error) { return c.w.queue.Forget(ctx, c.w.planned(conn, conn), keys) })
	return n > 0, err
}
