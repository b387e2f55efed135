package flow

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
)

const (
	// sweepEvery is how often somebody looks for steps that have ended untold.
	sweepEvery = time.Second
	// sweepShare bounds the share of its time that the look of a sweep takes, to one of so
	// many.
	sweepShare = 20
	// sweepPause bounds the pause between two sweeps all the same, below what the statement of
	// the turn takes for a clock that was set back.
	sweepPause = 20 * time.Second
	// longSlice is for how long a sweep looks at runs with more steps than a page, beyond the
	// first page of each.
	longSlice = 50 * time.Millisecond
)

// sweep looks for steps that have ended and were not told, if it is this worker's turn: at a
// page of steps of each run, and for a slice of time at what is behind it. So no run waits for
// a long list of another.
func (a *advancer) sweep(ctx context.Context) {
	pause := min(max(sweepEvery, sweepShare*a.took), sweepPause)
	a.sweepAt = time.Now().Add(sweepEvery + time.Duration(rand.Int64N(int64(sweepEvery)/4)))
	mine := false
	a.task(ctx, "look for ended steps of flows", func(ctx context.Context, conn *sql.Conn) (err error) {
		mine, err = a.sql.takeTurn(ctx, conn, pause)
		return err
	})
	if !mine {
		return
	}
	a.took = 0
	out := a.swept.Begin(time.Now())
	whole := a.sweepFirst(ctx, out) && a.sweepLong(ctx, out)
	if whole && ctx.Err() == nil {
		if len(a.long) > 0 {
			a.swept.Partly(nil)
		}
		a.swept.End()
	}
	if now := time.Now(); now.After(a.retainAt) {
		a.retainAt = now.Add(retainEvery)
		a.task(ctx, "remove runs of flows", a.retain)
	}
}

// sweepFirst looks at the first page of steps of each run, and takes down which runs have more.
// It reports whether it has come to the end.
func (a *advancer) sweepFirst(ctx context.Context, out []int64) bool {
	if a.long == nil {
		a.long = map[int64]int64{}
	}
	for after := int64(0); ; {
		p, ok := a.sweepPage(ctx, out, after)
		if !ok || p.last == 0 {
			return ok
		}
		if after = p.last; p.full {
			run := stepID(p.last).run()
			if _, known := a.long[run]; !known {
				a.long[run] = p.last
			}
			after = int64(idOf(run+1, 0, 0)) - 1
		}
	}
}

// sweepLong goes on with the runs that have more steps than a page.
func (a *advancer) sweepLong(ctx context.Context, out []int64) bool {
	for until := a.took + longSlice; len(a.long) > 0; {
		for run, after := range a.long {
			if a.took >= until {
				return true
			}
			p, ok := a.sweepPage(ctx, out, after)
			if !ok {
				return false
			}
			if a.long[run] = p.last; stepID(p.last).run() != run {
				delete(a.long, run)
			}
		}
	}
	return true
}

// sweepPage goes on with steps that somebody has left among the next ones above a step. ok is
// false if it has failed.
func (a *advancer) sweepPage(ctx context.Context, out []int64, after int64) (p swept, ok bool) {
	a.task(ctx, "look for ended steps of flows", func(ctx context.Context, conn *sql.Conn) (err error) {
		r := a.sql.round(a.plans.On(conn, conn))
		r.wake, r.ended, r.out = a.w.Wake, a.w.RunEnded, out
		r.refused = func(id int64, err error) error {
			_, ok := a.swept.Add(id, err, time.Now())
			a.w.Failed("advance flows", err)
			if !ok {
				return fmt.Errorf("more than %d steps are refused, the last one: %w", batch.MostRefused, err)
			}
			return nil
		}
		p, err = r.sweepPage(ctx, conn, after)
		ok = err == nil
		a.took += r.looked
		r.held = nil // the next sweep finds them
		a.keep(r, nil)
		return err
	})
	return p, ok && ctx.Err() == nil
}

// takeTurn reports whether nobody else sweeps for this pause.
func (s statements) takeTurn(ctx context.Context, on jobs.Querier, pause time.Duration) (mine bool, err error) {
	err = on.QueryRowContext(ctx, s.turn, pause.Microseconds()).Scan(&mine)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return mine, err
}

// swept is a page of steps that a sweep has looked at.
type swept struct {
	last int64 // 0: there was none
	full bool  // its run may have more
}

// sweepPage goes on with steps that somebody has left among the next thousand above a
// step. The jobs of a long list it leaves to the next rounds, a slice of time each.
func (r *round) sweepPage(ctx context.Context, conn *sql.Conn, after int64) (p swept, err error) {
	begin := time.Now()
	left, err := r.page(ctx, conn, after)
	r.looked = time.Since(begin)
	if err != nil {
		return p, err
	}
	var ended []int64
	var rest []movedStep
	through := int64(0) // the end of a list that the next rounds go on with, a slice of time each
	for _, m := range left {
		_, out := slices.BinarySearch(r.out, m.id)
		switch {
		case m.state == "", m.state == movedFull:
			p = swept{m.id, m.state == movedFull}
		case out:
		case m.state == "enqueued":
			ended = append(ended, m.id)
		case m.state == "ready" && stepID(m.id).item() > 0: // of a long list
			if m.id > through {
				through = stepID(m.id).lastItem()
				r.more = append(r.more, movedStep{m.id - 1, movedGrown})
			}
		default:
			rest = append(rest, m)
		}
	}
	if through > p.last {
		p = swept{last: through}
	}
	return p, errtext.Join(r.advance(ctx, ended), r.proceed(ctx, rest))
}

// page reads what a sweep looks at next. Without the setting, the planner sorts all steps of a
// long list for each page, if it takes the list for short.
func (s statements) page(ctx context.Context, conn *sql.Conn, after int64) (left []movedStep, err error) {
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `SELECT set_config('enable_sort', 'off', true)`); err != nil {
		return nil, err
	}
	return pgdriver.QueryAll(ctx, tx, scanMoved, s.sweep, after)
}
