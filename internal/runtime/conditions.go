package runtime

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/observe"
)

// Subject identifies a condition. Each Subject has at most one condition at a time.
type Subject struct {
	Condition observe.Condition
	Consumer  string
	Queue     string
	Detail    string // distinguishes conditions of one kind
}

// conditions are the reported conditions that have not ended. So the end of each condition
// is reported once, however often the condition was reported.
type conditions struct {
	n   atomic.Int64 // number of conditions; usually 0, so that End in each batch takes no lock
	mu  sync.Mutex
	all map[Subject]episode
}

type episode struct {
	since time.Time
	err   error
}

// Begin records that a condition was reported. It may be called again for the same
// condition.
func (c *conditions) Begin(s Subject, err error) { c.begin(s, err, time.Now()) }

func (c *conditions) begin(s Subject, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[Subject]episode{}
	}
	e, lasts := c.all[s]
	if !lasts {
		e.since = now
		c.n.Add(1)
	}
	e.err = err
	c.all[s] = e
}

// end removes a condition, and reports whether it existed.
func (c *conditions) end(s Subject) (e episode, was bool) {
	if c.n.Load() == 0 {
		return episode{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, was = c.all[s]; was {
		delete(c.all, s)
		c.n.Add(-1)
	}
	return e, was
}

// Forget drops conditions without reporting their end. The next worker reports them again,
// if they last.
func (c *conditions) Forget(which func(Subject) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.all {
		if which(s) {
			delete(c.all, s)
			c.n.Add(-1)
		}
	}
}

// End reports that a condition has ended, if it was reported.
func (o *Observers) End(s Subject) {
	if e, was := o.conditions.end(s); was {
		o.Notify(observe.Recovered{Worker: o.worker, Condition: s.Condition, Consumer: s.Consumer, Queue: s.Queue, Detail: s.Detail, Lasted: time.Since(e.since), Err: e.err})
	}
}
