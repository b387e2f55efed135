package jobs

import (
	"runtime"
	"sync"
	"time"
)

// runners are the goroutines that run handlers. A handler may block, so each call needs a goroutine
// of its own. Calls that take microseconds need no more goroutines than there are processors. A
// thousand goroutines would spend most of their time on growing their stacks. So a list of calls
// begins with few goroutines. If these do not keep up, each waiting call gets its own.
type runners struct {
	execute func(runs []*run) // runs a call

	mu       sync.Mutex
	waiting  [][]*run
	finished int // calls finished since the last check
	checking bool
}

// keepUp is how long a call may wait while others finish.
const keepUp = 100 * time.Microsecond

// run runs calls. Each call is a list of jobs.
func (c *runners) run(calls [][]*run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, calls...)
	few := runtime.GOMAXPROCS(0)
	c.spawn(min(len(calls), few))
	if len(calls) > few && !c.checking {
		c.checking, c.finished = true, 0
		time.AfterFunc(keepUp, c.check)
	}
}

func (c *runners) spawn(n int) {
	for range n {
		go c.runner()
	}
}

// check gives each waiting call a goroutine, unless the running calls finish quickly.
func (c *runners) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished < runtime.GOMAXPROCS(0) {
		c.spawn(len(c.waiting))
	}
	c.finished = 0
	if c.checking = len(c.waiting) > 0; c.checking {
		time.AfterFunc(keepUp, c.check)
	}
}

// runner runs calls until none waits. If runtime.Goexit in a handler ends the goroutine, the other
// runners take the waiting calls, or the next check does.
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
		c.execute(runs)
		c.mu.Lock()
		c.finished++
		c.mu.Unlock()
	}
}
