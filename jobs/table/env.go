package table

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/internal/watchdog"
	"github.com/pgfrontier/worker/observe"
)

// statementLimit bounds each statement of the worker's own.
const statementLimit = 10 * time.Second

// env is what the parts of a worker share.
type env struct {
	source    observe.Worker // names the worker in events
	store     *rows
	opts      WorkerOptions
	host      string // value of worker_hostname: the name of the machine and the ID
	grace     time.Duration
	limit     time.Duration // bounds a statement of the worker's own
	pool      *runtime.Pool
	observers *runtime.Observers
	sql       statements // the start sets it

	*conditions
	counts
	inFlight jobrun.InFlight[*run]
	turns    turns
}

// on runs statements of the worker's own on a connection of the pool.
func (e *env) on(ctx context.Context, f func(ctx context.Context, conn *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	return e.pool.On(ctx, e.limit, func(conn *sql.Conn) error { return f(ctx, conn) })
}

// counts are the slots of a worker, and the numbers of its Status.
type counts struct {
	slots int           // NumHandlers
	wake  chan struct{} // wakes the loop

	mu     sync.Mutex
	taken  int // slots taken
	status Status
}

// take takes slots for n claimed jobs.
func (c *counts) take(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken += n
	c.status.Claimed += int64(n)
}

// give returns a slot.
func (c *counts) give() {
	c.mu.Lock()
	c.taken--
	c.mu.Unlock()
	jobrun.Wake(c.wake)
}

// free returns how many slots are free, and how many jobs were claimed so far.
func (c *counts) free() (free int, claimed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots - c.taken, c.status.Claimed
}

// change changes the status.
func (c *counts) change(f func(s *Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.status)
}

// turns are the watchdogs of the loops.
type turns struct{ claims, beats, settles, resets watchdog.Iteration }
