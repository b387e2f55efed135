package runtime

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/observe"
)

// Subject is what a condition is about. There is one condition of each Subject at a time.
type Subject struct {
	Condition observe.Condition
	Consumer  string
	Queue     string
	Detail    string // tells conditions of one kind apart
}

// conditions are those that were reported and have not ended. So the end of each is reported once,
// however often the condition was.
type conditions struct {
	n   atomic.Int64 // of all: most calls of End find none, in each batch
	mu  sync.Mutex
	all map[Subject]episode
}

type episode struct {
	since time.Time
	err   error
}

// Begin records that a condition was reported, perhaps not for the first time.
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

// end removes a condition, and reports whether it was there.
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

// Forget drops conditions, and does not report that they have ended: another worker meets them, or
// does not.
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
