package flow

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/jobflow"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/jobs"
)

// Advance makes a worker advance the runs of flows, after each step whose job it has
// run. About once a second one of all workers looks for steps that have ended and were not
// told: those of a dead worker, and what an operator has ended. It also removes runs that
// have ended, as [jobs.WithRetention] says.
//
// Give it to all workers that run steps. Without a worker that has it, no run gets on.
func Advance() jobs.Option {
	return jobflow.Beside(func() jobflow.Companion { return &advancer{wake: make(chan struct{}, 1)} }).(jobs.Option)
}

const (
	// mostAtOnce bounds the steps of a statement.
	mostAtOnce = 500
	// enough steps are told at once, without waiting for more.
	enough = 200
	// gather bounds the pause in which ended steps gather for the next statement.
	gather = 5 * time.Millisecond
	// sweepEvery is how often somebody looks for steps that have ended untold.
	sweepEvery = time.Second
	// sweepShare bounds the share of its time that the sweep takes, to one of so many, while
	// the pause is not longer than longestPause.
	sweepShare = 20
	// longestPause bounds the pause between two sweeps, as the statement of the turn does.
	longestPause = time.Minute
	// retainEvery is how often a worker removes runs that have ended.
	retainEvery = 10 * time.Second
	// lastLimit bounds the last statements, when the worker stops.
	lastLimit = 2 * time.Second
)

// advancer is what [Advance] gives to a worker.
type advancer struct {
	w    jobflow.Worker
	sql  statements
	wake chan struct{}

	mu    sync.Mutex
	ended []int64 // steps

	sweepAt  time.Time
	took     time.Duration // by the last sweep
	retainAt time.Time
}

// Prepare takes the tables of the worker, and checks that its role may do all that an
// advancer ever does.
func (a *advancer) Prepare(ctx context.Context, conn *sql.Conn, w jobflow.Worker) error {
	a.w, a.sql = w, newStatements(w.Tables)
	missing, err := rights.Missing(ctx, conn, rights.JobsFlows(w.Tables))
	if err != nil {
		return fmt.Errorf("flow: %w", err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("flow: %w: %s", jobs.ErrPrivileges, strings.Join(missing, "; "))
	}
	return nil
}

// Ended takes note of the end of a step.
func (a *advancer) Ended(meta json.RawMessage) {
	id, ok := stepOf(meta)
	if !ok {
		return
	}
	a.mu.Lock()
	a.ended = append(a.ended, int64(id))
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// stepOf reads from the Meta of a job which step it is.
func stepOf(meta json.RawMessage) (id stepID, ok bool) {
	var m marker
	if !bytes.Contains(meta, []byte(`"flow_step"`)) || json.Unmarshal(meta, &m) != nil {
		return 0, false
	}
	return stepID(m.Step), m.Step > 0
}

func (a *advancer) take() (ids []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(a.ended), mostAtOnce)
	ids, a.ended = a.ended[:n:n], a.ended[n:]
	return ids
}

func (a *advancer) putBack(ids []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = append(ids, a.ended...)
}

func (a *advancer) waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ended)
}

// Run tells of the ends of steps until ctx ends, and of those that are left then.
func (a *advancer) Run(ctx context.Context) {
	a.sweepAt = time.Now()
	for ctx.Err() == nil {
		if !time.Now().Before(a.sweepAt) {
			a.sweep(ctx)
		}
		if a.waiting() > 0 {
			a.tell(ctx)
			continue
		}
		timer := time.NewTimer(time.Until(a.sweepAt))
		select {
		case <-a.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLimit)
	defer cancel()
	for a.waiting() > 0 && last.Err() == nil {
		a.tell(last)
	}
}

// tell tells of ended steps in one statement, and of what follows. If that fails, the
// sweep will find them.
func (a *advancer) tell(ctx context.Context) {
	begin := time.Now()
	ids := a.take()
	a.task(ctx, "advance flows", func(bounded context.Context, conn *sql.Conn) error {
		err := a.sql.advanceAll(bounded, conn, ids, a.w.Wake)
		if err != nil && ctx.Err() != nil {
			a.putBack(ids) // the worker stops, and has a moment left for these
		}
		return err
	})
	if took := time.Since(begin); a.waiting() < enough {
		backoff.Sleep(ctx, min(took, gather))
	}
}

func (a *advancer) task(ctx context.Context, name string, f func(ctx context.Context, conn *sql.Conn) error) {
	bounded, cancel := context.WithTimeout(ctx, a.w.Limit)
	defer cancel()
	err := a.w.On(bounded, func(conn *sql.Conn) error { return f(bounded, conn) })
	if ctx.Err() == nil {
		a.w.Failed(name, err)
	}
}

// sweep looks for steps that have ended and were not told, if it is this worker's turn.
func (a *advancer) sweep(ctx context.Context) {
	pause := min(max(sweepEvery, sweepShare*a.took), longestPause)
	a.sweepAt = time.Now().Add(sweepEvery + time.Duration(rand.Int64N(int64(sweepEvery)/4)))
	mine := false
	a.task(ctx, "look for ended steps of flows", func(ctx context.Context, conn *sql.Conn) (err error) {
		mine, err = a.sql.takeTurn(ctx, conn, pause)
		return err
	})
	if !mine {
		return
	}
	begin := time.Now()
	for after, more := int64(0), true; more && ctx.Err() == nil; {
		more = false
		a.task(ctx, "look for ended steps of flows", func(ctx context.Context, conn *sql.Conn) (err error) {
			after, err = a.sql.sweepPage(ctx, conn, after, a.w.Wake)
			more = after > 0
			return err
		})
	}
	a.took = time.Since(begin)
	if now := time.Now(); a.w.Retention > 0 && now.After(a.retainAt) {
		a.retainAt = now.Add(retainEvery)
		a.task(ctx, "remove runs of flows", func(ctx context.Context, conn *sql.Conn) error { return a.sql.retain(ctx, conn, a.w.Retention) })
	}
}

// movedStep is a step that a statement has moved on.
type movedStep struct {
	id    int64
	state string
}

func scanMoved(r *sql.Rows) (m movedStep, err error) { return m, r.Scan(&m.id, &m.state) }

// advanceAll tells of the ends of steps, and of what follows from them without a job.
// wake is called if there are new jobs; it may be nil.
func (s statements) advanceAll(ctx context.Context, on jobs.Querier, ids []int64, wake func()) error {
	var all []error
	for len(ids) > 0 {
		n := min(len(ids), mostAtOnce)
		all = append(all, halving(ids[:n], func(ids []int64) error {
			moved, err := pgdriver.QueryAll(ctx, on, scanMoved, s.advance, list(ids))
			if err != nil {
				return fmt.Errorf("tell of the end of %d steps, the first is of run %d: %w", len(ids), stepID(ids[0]).run(), err)
			}
			return s.proceed(ctx, on, moved, wake)
		}))
		ids = ids[n:]
	}
	return errtext.Join(all...)
}

// halving calls f with ids. If one of them may have made it fail, it calls f with each half,
// and so on, until it is one run's: somebody has changed its rows, and the others go on.
func halving(ids []int64, f func(ids []int64) error) error {
	var all []error
	err := batch.Each(ids, f, func(_ int64, err error) error {
		all = append(all, err)
		return nil
	})
	return errtext.Join(append(all, err)...)
}

// proceed goes on with steps that were moved: those that have ended are told in turn,
// and those of Map spread. Each statement is whole; if one is the last, the sweep goes on.
func (s statements) proceed(ctx context.Context, on jobs.Querier, moved []movedStep, wake func()) error {
	enqueued := false
	var ended, ready []int64
	for _, m := range moved {
		switch m.state {
		case "enqueued":
			enqueued = true
		case "ready":
			ready = append(ready, m.id)
		case "", "waiting", "spread":
		default:
			ended = append(ended, m.id)
		}
	}
	var refused error
	if len(ready) > 0 {
		refused = halving(ready, func(ids []int64) error {
			spread, err := pgdriver.QueryAll(ctx, on, scanMoved, s.spread, list(ids))
			if err != nil {
				return fmt.Errorf("add the jobs of %d lists, the first is of run %d: %w", len(ids), stepID(ids[0]).run(), err)
			}
			for _, m := range spread {
				if m.state == "spread" {
					enqueued = true
				} else {
					ended = append(ended, m.id)
				}
			}
			return nil
		})
	}
	if enqueued && wake != nil {
		wake()
	}
	return errtext.Join(refused, s.advanceAll(ctx, on, ended, wake))
}

// takeTurn reports whether nobody else sweeps for this pause.
func (s statements) takeTurn(ctx context.Context, on jobs.Querier, pause time.Duration) (mine bool, err error) {
	err = on.QueryRowContext(ctx, s.turn, pause.Microseconds()).Scan(&mine)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return mine, err
}

// sweepPage goes on with steps that somebody has left among the next thousand above a
// step. It returns the last of these, 0 after the last page.
func (s statements) sweepPage(ctx context.Context, on jobs.Querier, after int64, wake func()) (last int64, err error) {
	left, err := pgdriver.QueryAll(ctx, on, scanMoved, s.sweep, after)
	if err != nil {
		return 0, err
	}
	var ended []int64
	for i, m := range left {
		switch m.state {
		case "":
			last = m.id
		case "enqueued":
			ended, left[i].state = append(ended, m.id), ""
		}
	}
	return last, errtext.Join(s.advanceAll(ctx, on, ended, wake), s.proceed(ctx, on, left, wake))
}

// retain removes runs that ended longer ago than they are kept.
func (s statements) retain(ctx context.Context, on jobs.Querier, keep time.Duration) error {
	old, err := pgdriver.QueryAll(ctx, on, func(r *sql.Rows) (id int64, err error) { return id, r.Scan(&id) }, s.old, keep.Microseconds())
	if err != nil || len(old) == 0 {
		return err
	}
	for _, statement := range []string{s.forgetSteps, s.forgetRuns} {
		if _, err := on.ExecContext(ctx, statement, list(old)); err != nil {
			return err
		}
	}
	return nil
}
