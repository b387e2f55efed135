package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// A peer is one of the libraries, at work in a site.
type peer interface {
	// enqueue adds jobs of these numbers, in one call of the library.
	enqueue(ctx context.Context, first, n int) error

	// start starts a worker. The caller must stop it, and stop returns when it
	// has ended.
	start(ctx context.Context) (stop func() error, err error)

	// unfinished reports whether a job is not completed yet. It is cheap.
	unfinished(ctx context.Context) (bool, error)

	// completed counts the jobs that are completed and needed one attempt, and
	// all others.
	completed(ctx context.Context) (completed, others int, err error)

	// close releases the connections.
	close() error
}

// A side is a library.
type side struct {
	name string
	open func(ctx context.Context, s *site, c config) (peer, error)
}

var (
	theirs = side{"River", openRiver}
	ours   = side{"jobs", openOurs}
)

// config is how a peer is set up.
type config struct {
	slots    int           // handlers at a time
	tuned    bool          // River for throughput, instead of its defaults
	prefetch int           // jobs that ours claims beyond its slots
	poll     time.Duration // poll this often, and do without LISTEN; 0: be notified
	work     work
	fast     bool // River enqueues by COPY
}

// work is what a handler does.
type work int

const (
	noop    work = iota
	tx           // one INSERT and the completion in one transaction
	batchTx      // one INSERT and the completions of many jobs in one transaction
)

// tally counts what handlers do. Jobs have numbers from 0 to its size.
type tally struct {
	runs    []atomic.Int32
	began   []atomic.Int64 // when a job began to run, in nanoseconds since epoch
	handled atomic.Int64
	foreign atomic.Int64 // jobs of other numbers
	epoch   time.Time
}

func newTally(jobs int) *tally {
	return &tally{runs: make([]atomic.Int32, jobs), began: make([]atomic.Int64, jobs), epoch: time.Now()}
}

// ran notes that a job runs now.
func (t *tally) ran(job int) {
	if job < 0 || job >= len(t.runs) {
		t.foreign.Add(1)
		return
	}
	t.began[job].Store(int64(time.Since(t.epoch)))
	t.runs[job].Add(1)
	t.handled.Add(1)
}

func (t *tally) total() int { return int(t.handled.Load()) }

// check returns an error unless every job ran exactly once.
func (t *tally) check() error {
	missing, again := 0, 0
	for i := range t.runs {
		switch n := t.runs[i].Load(); {
		case n == 0:
			missing++
		case n > 1:
			again++
		}
	}
	if foreign := t.foreign.Load(); missing+again > 0 || foreign > 0 {
		return fmt.Errorf("of %d jobs %d did not run, %d ran more than once, and %d ran that nobody enqueued", len(t.runs), missing, again, foreign)
	}
	return nil
}

// check returns an error unless all jobs of the tally ran once and are completed
// in the tables, and the effects are there once, as far as handlers have any.
func (s *site) check(ctx context.Context, p peer, w work) error {
	if err := s.tally.check(); err != nil {
		return err
	}
	n := len(s.tally.runs)
	if err := counted(ctx, p, n); err != nil || w == noop {
		return err
	}
	var rows, jobs int
	if err := s.db.QueryRow(ctx, `SELECT count(*), count(DISTINCT job) FROM effects`).Scan(&rows, &jobs); err != nil {
		return err
	}
	if rows != n || jobs != n {
		return fmt.Errorf("%d jobs left %d effects, of %d jobs", n, rows, jobs)
	}
	return nil
}

// counted returns an error unless n jobs are completed, and there are no others.
func counted(ctx context.Context, p peer, n int) error {
	completed, others, err := p.completed(ctx)
	if err == nil && (completed != n || others != 0) {
		err = fmt.Errorf("of %d jobs %d are completed at the first attempt, and there are %d others", n, completed, others)
	}
	return err
}

// enqueueAll enqueues the jobs of the tally, in batches.
func (s *site) enqueueAll(ctx context.Context, p peer, batch int) error {
	for first, n := 0, len(s.tally.runs); first < n; first += batch {
		if err := p.enqueue(ctx, first, min(batch, n-first)); err != nil {
			return err
		}
	}
	return nil
}

// working runs a worker while during runs.
func working(ctx context.Context, p peer, during func() error) (err error) {
	stop, err := p.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return during()
}
