package jobs

import (
	"runtime"
	"sync"
	"time"
)

// runners are the goroutines that run handlers. A call of a handler needs one of its
// own, as it may wait for anything. But calls that take microseconds need no more
// than there are processors: a thousand goroutines would spend most of their time on
// growing their stacks. So a list of calls begins with few, and if these do not keep
// up, each call that waits gets its own.
type runners struct {
	w *Worker

	mu       sync.Mutex
	waiting  [][]*run
	finished int // calls, since the last look
	looking  bool
}

// keepUp is how long a call may wait while others are finished.
const keepUp = 100 * time.Microsecond

// run runs calls, each of some jobs.
func (c *runners) run(calls [][]*run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, calls...)
	few := runtime.GOMAXPROCS(0)
	c.spawn(min(len(calls), few))
	if len(calls) > few && !c.looking {
		c.looking, c.finished = true, 0
		time.AfterFunc(keepUp, c.look)
	}
}

func (c *runners) spawn(n int) {
	for range n {
		go c.runner()
	}
}

// look gives each call that waits a goroutine, unless those that run are quick.
func (c *runners) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished < runtime.GOMAXPROCS(0) {
		c.spawn(len(c.waiting))
	}
	c.finished = 0
	if c.looking = len(c.waiting) > 0; c.looking {
		time.AfterFunc(keepUp, c.look)
	}
}

// runner runs calls until none waits. runtime.Goexit in a handler ends it before:
// then the others run what waits, or the next look finds it.
func (c *runners) runner() {
	for {
		c.mu.Lock()
		if len(c.waiting) == 0 {
			c.waiting = nil
			c.mu.Unlock()
			return
		}
		runs := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		c.w.execute(runs)
		c.mu.Lock()
		c.finished++
		c.mu.Unlock()
	}
}
