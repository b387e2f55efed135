package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/progress"
)

// Trouble is a kind of trouble that the worker tells of, and of its end.
type Trouble string

const (
	TroubleFrontier     Trouble = "frontier"     // FrontierFailed: nothing new can be seen
	TroubleTransaction  Trouble = "transaction"  // FrontierBlocked: it stayed open, and has ended or holds nothing back any more
	TroubleNotify       Trouble = "notify"       // NotifyFailed
	TroubleCoordination Trouble = "coordination" // CoordinationFailed
	TroubleUnowned      Trouble = "unowned"      // ConsumerUnowned
	TroubleDatabase     Trouble = "database"     // Retrying, not ByHandler: statements failed
	TroubleBatch        Trouble = "batch"        // Retrying: a handler failed, or PostgreSQL sacrificed its batch
	TroubleKey          Trouble = "key"          // Retrying, not ByHandler: the key of its partitions panics
	TroublePaused       Trouble = "paused"       // ConsumerPaused: an operator has resumed it
	TroubleOverdue      Trouble = "overdue"      // HandlerOverdue: the handler has returned
	TroubleLock         Trouble = "lock"         // ConsumerWaiting: for another transaction's lock
	TroubleDoubts       Trouble = "doubts"       // ConsumerWaiting: at WithMaxOpenRanges
	TroubleScope        Trouble = "scope"        // ConsumerWaiting: a worker runs whose build selects more
	TroubleStart        Trouble = "start"        // ConsumerWaiting: to begin at the head, for transactions that have drawn positions
)

// Recovery says that a trouble is over.
type Recovery struct {
	Trouble  Trouble
	Consumer string        // empty: it was not one consumer's
	Detail   string        // tells apart troubles of one kind
	Lasted   time.Duration // since it was told first
	Err      error         // what it was when it was told last
}

// subject is what a trouble is about. There is one trouble of each at a time.
type subject struct {
	trouble  Trouble
	consumer string
	detail   string // tells apart what is of one kind
}

// troubles are those that were told and are not over. So the end of each is
// told once, however often it was told itself.
type troubles struct {
	n   atomic.Int64 // of open: most calls of end find none, in each batch
	mu  sync.Mutex
	all map[subject]episode
}

type episode struct {
	since time.Time
	err   error
}

// begin takes note that a trouble was told.
func (t *troubles) begin(s subject, err error, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[subject]episode{}
	}
	e, lasts := t.all[s]
	if !lasts {
		e.since = now
		t.n.Add(1)
	}
	e.err = err
	t.all[s] = e
}

// end reports whether a trouble was told that is over now.
func (t *troubles) end(s subject, now time.Time) (r Recovery, was bool) {
	if t.n.Load() == 0 {
		return Recovery{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e, was := t.all[s]
	if !was {
		return Recovery{}, false
	}
	delete(t.all, s)
	t.n.Add(-1)
	return Recovery{Trouble: s.trouble, Consumer: s.consumer, Detail: s.detail, Lasted: now.Sub(e.since), Err: e.err}, true
}

// forget drops the troubles that are another worker's affair from now on.
func (t *troubles) forget(which func(subject) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.all {
		if which(s) {
			delete(t.all, s)
			t.n.Add(-1)
		}
	}
}

// leave forgets the troubles of a consumer whose loop has ended: the worker that
// runs it next meets them, or does not. TroubleStart is not the loop's.
func (t *troubles) leave(consumer string) {
	t.forget(func(s subject) bool {
		return s.consumer == consumer && s.trouble != TroubleUnowned && s.trouble != TroubleStart
	})
}

// troubled takes note of a trouble that was told.
func (w *Worker) troubled(s subject, err error) { w.troubles.begin(s, err, time.Now()) }

// recovered tells, once, that a trouble is over, if it was told.
func (w *Worker) recovered(s subject) {
	r, was := w.troubles.end(s, time.Now())
	if !was {
		return
	}
	tell(w.observer.Recovered, r)
}

// about is a trouble of the loop's consumer.
func (c *consumerLoop) about(t Trouble) subject { return subject{trouble: t, consumer: c.unit.name} }

// aboutBatch is what is told of a batch, of new events or of a dead letter.
func (c *consumerLoop) aboutBatch(t Trouble, r *progress.Retry) subject {
	s := c.about(t)
	if r != nil {
		s.detail = "dead letter"
	}
	return s
}

// noteResumed tells that an operator has resumed the consumer which a worker,
// perhaps another one, has paused.
func (c *consumerLoop) noteResumed() {
	switch p := c.progress.Paused; {
	case p == nil:
		c.w.recovered(c.about(TroublePaused))
	case p.ByWorker():
		c.w.troubled(c.about(TroublePaused), errors.New(p.Reason))
	}
}

// passed takes note that there is nothing left to do up to a position.
func (c *consumerLoop) passed(r *progress.Retry, position int64) {
	t := c.tallyOf(r)
	if t.passed(position); t.clean() {
		c.w.recovered(c.aboutBatch(TroubleBatch, r))
	}
}

// observeFrontier lets the frontier tell of its troubles. Where its connection
// has died, others have.
func (w *Worker) observeFrontier(f *frontier.Config) {
	blocked := func(h frontier.Holder) subject {
		return subject{trouble: TroubleTransaction, detail: cmp.Or(h.GID, "pid "+strconv.Itoa(h.PID)) + ", virtual transaction " + h.VirtualTransaction}
	}
	f.OnFailure = func(err error) {
		err = errtext.Of(err)
		w.sweepNow.Send()
		w.troubled(subject{trouble: TroubleFrontier}, err)
		tell(w.observer.FrontierFailed, err)
	}
	f.OnBack = func() { w.recovered(subject{trouble: TroubleFrontier}) }
	f.OnStale = func(h frontier.Holder) {
		w.troubled(blocked(h), fmt.Errorf("a transaction stays open (pid %d, application_name %q, prepared as %q): %s", h.PID, h.ApplicationName, h.GID, h.Remedy()))
		tell(w.observer.FrontierBlocked, h)
	}
	f.OnFree = func(h frontier.Holder) { w.recovered(blocked(h)) }
}

// observeCoordination lets the coordination tell of its troubles. What only the
// leader knows is told by the leader.
func (w *Worker) observeCoordination(c *coord.Config) {
	unowned := func(consumer string) subject { return subject{trouble: TroubleUnowned, consumer: consumer} }
	c.OnFailure = func(err error) {
		err = errtext.Of(explain(err))
		w.troubled(subject{trouble: TroubleCoordination}, err)
		tell(w.observer.CoordinationFailed, err)
	}
	c.OnBack = func() { w.recovered(subject{trouble: TroubleCoordination}) }
	c.OnLeader = func(leads bool) {
		if !leads {
			w.troubles.forget(func(s subject) bool { return s.trouble == TroubleUnowned })
		}
		tell(w.observer.LeadershipChanged, Leadership{w.id, leads})
	}
	c.OnUnowned = func(consumer, reason string) {
		w.troubled(unowned(consumer), errors.New(reason))
		tell(w.observer.ConsumerUnowned, ConsumerInfo{Consumer: consumer, Reason: reason})
	}
	c.OnOwned = func(consumer string) { w.recovered(unowned(consumer)) }
	c.OnAssigned = func(workers, changes int) { tell(w.observer.Rebalanced, Rebalance{workers, changes}) }
	c.OnDrain = w.stop.Drain
	c.OnReregister = func() { tell(w.observer.WorkerReregistered, WorkerInfo{ID: w.id}) }
	c.OnStaleRemoved = func(rows int) { tell(w.observer.StaleWorkersRemoved, rows) }
	c.OnTaskFailed = func(task string, err error) { w.taskFailed(context.Background(), task, "", err) }
}
