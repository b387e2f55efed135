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
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

const (
	// maintenanceTick is how often the leader checks whether maintenance is due.
	maintenanceTick = 250 * time.Millisecond
	// maintenanceEvery is the default interval between two rounds of maintenance.
	maintenanceEvery = 10 * time.Second
	// maintenanceSlice bounds the time for removing old rows of one kind. Then the other kinds have
	// their turn.
	maintenanceSlice = 500 * time.Millisecond
)

// maintenance is the work that is not urgent and that one worker does for all: the leader. The
// leader removes old rows, and checks for queues, flows and keys that no worker serves. Correctness
// does not depend on there being one leader only.
type maintenance struct {
	*env
	events    tables.Tables // of package worker
	interval  time.Duration // between two rounds
	retention time.Duration // of finished jobs; 0: for ever
	rescuer   *rescuer

	turn  watchdog.Iteration
	at    time.Time // when the next round is due
	pass  pass
	token atomic.Bool // asks for the token at once: the server may have crashed

	expires chunks[int64]
	retains chunks[int64]
	forgets chunks[string] // keys of Once

	unserved   sighted // queues without a worker
	orphans    sighted // emitters without a checkpoint
	unadvanced int     // consecutive rounds in which no worker advanced flows
}

// refusedKey describes a key of Once that the database refuses to remove.
func refusedKey(e *env, key string, err error) error {
	return fmt.Errorf("key %s: the database refuses to remove it from %s, and others go on: mend what refuses it, such as a trigger or a foreign key: %w", errtext.Value(key), e.tables.Once, errtext.Of(err))
}

// run does maintenance until ctx ends.
func (c *maintenance) run(ctx context.Context) {
	for backoff.Sleep(ctx, maintenanceTick) {
		now := time.Now()
		if c.token.Swap(false) {
			c.task(ctx, "keep the token", c.ensureToken)
		}
		if !c.rescuer.coord.Status().Leader {
			c.pass, c.at = pass{}, time.Time{} // a worker that becomes leader again starts a round at once
			continue
		}
		// The rescuer may have seen a loss of leadership that was shorter than a tick.
		if cleared := c.rescuer.cleared.Swap(false); cleared || now.After(c.at) {
			c.at = now.Add(c.interval)
			c.begin(ctx)
		}
		c.cleanUp(ctx)
	}
}

func (c *maintenance) task(ctx context.Context, name string, f func(ctx context.Context, conn *sql.Conn) error) {
	c.env.task(ctx, &c.turn, name, f)
}

// begin does the short tasks of a round. If no pass is under way, begin starts a pass over old
// rows.
func (c *maintenance) begin(ctx context.Context) {
	c.task(ctx, "find jobs of workers that are gone", func(ctx context.Context, conn *sql.Conn) error {
		ids, err := c.queue.Claimers(ctx, c.planned(conn, conn))
		c.rescuer.suspect(ids)
		return err
	})
	c.task(ctx, "keep the token", c.ensureToken)
	c.task(ctx, "compare the sequence of jobs", func(ctx context.Context, conn *sql.Conn) error {
		c.checkSequence(ctx, conn)
		return nil
	})
	c.task(ctx, "find queues without a worker", c.checkUnserved)
	c.task(ctx, "find flows without a worker", c.checkUnadvanced)
	c.task(ctx, orphansTask, c.checkOrphans)
	if !c.pass.underWay() {
		c.task(ctx, "find finished jobs", func(ctx context.Context, conn *sql.Conn) (err error) {
			c.pass.queues, err = c.queue.Retained(ctx, c.planned(conn, conn))
			return err
		})
		c.pass.expire, c.pass.forget, c.pass.notes = true, true, true
	}
}

// sightingsNeeded is how many consecutive rounds must see a condition before the worker reports it.
// One sighting may be a worker that starts, or that has just left for another one.
const sightingsNeeded = 2

// sighted counts, by name, in how many consecutive rounds a condition was seen.
type sighted map[string]int

// now records the names that this round has seen. It returns the names to report. Each name is
// reported once.
func (s *sighted) now(names []string) (report []string) {
	was := *s
	*s = make(sighted, len(names))
	for _, name := range names {
		if (*s)[name] = was[name] + 1; (*s)[name] == sightingsNeeded {
			report = append(report, name)
		}
	}
	return report
}

// checkUnserved reports each queue that has due jobs and no worker. Each queue is reported once.
func (c *maintenance) checkUnserved(ctx context.Context, conn *sql.Conn) error {
	queues, err := c.queue.Unserved(ctx, c.planned(conn, conn))
	if err != nil {
		return err
	}
	for _, name := range c.unserved.now(queues) {
		c.taskFailed("find queues without a worker", fmt.Errorf("queue %s has jobs that are due, and no worker serves it: start one that has it, by WithQueue", errtext.Value(name)))
	}
	return nil
}

// checkOrphans reports each consumer whose keys of EnqueueFor no worker removes. Each consumer is
// reported once.
func (c *maintenance) checkOrphans(ctx context.Context, conn *sql.Conn) error {
	emitters, err := c.queue.Orphans(ctx, c.planned(conn, conn), c.events)
	if err != nil {
		return err
	}
	for _, name := range c.orphans.now(emitters) {
		c.taskFailed(orphansTask, fmt.Errorf("the rows of consumer %s in %s, written by EnqueueFor, are not removed, since %s has no such consumer: if its checkpoints are in another table, name that with WithNames; if it is retired, and no other goes on for it by EmitAs, its rows may be deleted", errtext.Value(name), c.tables.Emitted, c.events.Checkpoints))
	}
	return nil
}

// checkUnadvanced reports unfinished flow runs that no worker advances. The condition is reported
// once.
func (c *maintenance) checkUnadvanced(ctx context.Context, conn *sql.Conn) error {
	unadvanced, err := c.queue.Unadvanced(ctx, c.planned(conn, conn))
	switch {
	case err != nil:
		return err
	case !unadvanced:
		c.unadvanced = 0
		return nil
	}
	if c.unadvanced++; c.unadvanced == sightingsNeeded {
		return errors.New("runs of flows have not ended, and no worker advances them, so they stand still: give flow.Advance() to the workers")
	}
	return nil
}

// checkSequence reports a sequence that will repeat IDs of earlier jobs. A job with a repeated ID
// runs, but its outcome cannot be stored. If the check itself fails, the worker starts all the
// same.
func (e *env) checkSequence(ctx context.Context, conn *sql.Conn) {
	found, err := serial.Find(ctx, conn, serial.Enqueued(e.tables))
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("ids of jobs come again: %v: raise it (pgfrontier sequences --raise, or RaiseSequences of ops.Jobs)", found[0])
	}
	e.taskFailed("compare the sequence of jobs", err)
}

// ensureToken inserts the token of the table if it is missing, such as after a server crash. A free
// lock proves that a worker is dead only while the token is there.
func (e *env) ensureToken(ctx context.Context, conn *sql.Conn) error {
	return pgdriver.Repeated(func() error {
		_, err := conn.ExecContext(ctx, incarnation.InsertTokenOnce(e.tables.Token), uuid.NewString())
		return err
	})
}

// pass is the rest of a pass over old rows. A pass may take many slices: millions of jobs may have
// finished on one day.
type pass struct {
	expire, forget bool
	notes          bool           // keys of EnqueueFor
	queues         []string       // queues with finished jobs to remove
	after          queue.Finished // the last job of the first queue that was read; zero: none yet
}

func (p *pass) underWay() bool { return p.expire || p.forget || p.notes || len(p.queues) > 0 }

// cleanUp continues the pass, for one slice of each kind. The next pass retries what failed.
func (c *maintenance) cleanUp(ctx context.Context) {
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

// slice repeats a step until nothing is left or [maintenanceSlice] is over. It reports whether more
// is left.
func (c *maintenance) slice(ctx context.Context, name string, step func(ctx context.Context, conn *sql.Conn) (more bool, err error)) (more bool) {
	c.task(ctx, name, func(ctx context.Context, conn *sql.Conn) (err error) {
		for begin := time.Now(); ; {
			if more, err = step(ctx, conn); err != nil || !more {
				more = false
				return err
			}
			if time.Since(begin) > maintenanceSlice {
				return nil
			}
		}
	})
	return more
}

func (c *maintenance) expireSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	expired := 0
	n, err := c.expires.take(ctx, c.env, expireTask, func(out []int64, most int) ([]int64, error) {
		return c.queue.Expirable(ctx, c.planned(conn, conn), out, most)
	}, func(jobs []int64) (int, error) {
		ids, err := c.queue.Expire(ctx, c.planned(conn, conn), jobs)
		expired += len(ids)
		return len(ids), err
	})
	if expired > 0 {
		c.observers.Notify(observe.JobsExpired{Jobs: expired})
	}
	return n > 0, err
}

const (
	expireTask = "expire jobs"
	retainTask = "remove finished jobs"
	forgetTask = "remove old keys"

	orphansTask = "find keys of EnqueueFor that no worker removes"
)

// retainSome removes finished jobs of the first queue of the pass. It continues after the last job
// that the previous call has read.
func (c *maintenance) retainSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	p := &c.pass
	last := p.after
	n, err := c.retains.take(ctx, c.env, retainTask, func(out []int64, most int) (ids []int64, err error) {
		ids, last, err = c.queue.Retainable(ctx, c.planned(conn, conn), p.queues[0], c.retention, p.after, out, most)
		return ids, err
	}, func(jobs []int64) (int, error) { return c.queue.Remove(ctx, c.planned(conn, conn), jobs) })
	if pgdriver.FaultOf(err) != pgdriver.FaultServer { // no job of this queue can be removed
		c.taskFailed(retainTask, err)
		n, last, err = 0, p.after, nil
	}
	if err != nil {
		return false, err
	}
	if n == 0 && last == p.after { // nothing is left: rows that are locked were passed over
		p.queues, last = p.queues[1:], queue.Finished{}
	}
	p.after = last
	return len(p.queues) > 0, nil
}

// raiseSome removes keys of EnqueueFor.
func (c *maintenance) raiseSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	there, err := c.queue.HasEvents(ctx, c.planned(conn, conn), c.events)
	if !there || err != nil {
		return false, err
	}
	n, err := c.queue.Raise(ctx, c.planned(conn, conn), c.events)
	return n > 0, err
}

func (c *maintenance) forgetSome(ctx context.Context, conn *sql.Conn) (more bool, err error) {
	n, err := c.forgets.take(ctx, c.env, forgetTask, func(out []string, most int) ([]string, error) {
		return c.queue.Forgettable(ctx, c.planned(conn, conn), out, most)
	}, func(keys []string) (int, error) { return c.queue.Forget(ctx, c.planned(conn, conn), keys) })
	return n > 0, err
}
