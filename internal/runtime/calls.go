package runtime

import (
	"sync"
	"time"
)

// calls are the calls of observers and hooks that have not returned. The zero value has
// none.
type calls struct {
	mu  sync.Mutex
	all map[*call]struct{}
}

type call struct {
	hook  string
	began time.Time
}

// begin records a call until end is called.
func (c *calls) begin(hook string) (end func()) {
	one := &call{hook, time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[*call]struct{}{}
	}
	c.all[one] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.all, one)
	}
}

// Longest returns the running call that began first, and how long it has been running. The
// name is empty if no call runs.
func (c *calls) Longest() (hook string, lasts time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var began time.Time
	for one := range c.all {
		if hook == "" || one.began.Before(began) {
			hook, began = one.hook, one.began
		}
	}
	if hook == "" {
		return "", 0
	}
	return hook, time.Since(began)
}
