package hooks

import (
	"sync"
	"time"
)

// Calls are those of hooks that have not returned. The zero value has none.
type Calls struct {
	mu  sync.Mutex
	all map[*call]struct{}
}

type call struct {
	hook  string
	began time.Time
}

// Begin takes note of a call until its end.
func (c *Calls) Begin(hook string) (end func()) {
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

// Longest returns which hook was called first, and for how long it has been running: an
// empty name if none runs.
func (c *Calls) Longest() (hook string, lasts time.Duration) {
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
