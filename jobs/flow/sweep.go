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
	// sweepEvery is how often one of the workers sweeps: it searches for ended steps without a report.
	sweepEvery = time.Second
	// sweepShare bounds the share of time that a sweep's page takes, to one in sweepShare.
	sweepShare = 20
	// sweepPause bounds the pause between two sweeps in any case. It is shorter than the bound in
	// turnSQL, above which a turn counts as taken before the clock was set back.
	sweepPause = 20 * time.Second
	// longSlice bounds the time for the further pages of runs that have more than a page of steps.
	longSlice = 50 * time.Millisecond
)

// sweep finds and processes steps that have ended without a report, if it is this worker's turn. It
// reads a page of steps of each run, and further pages for a slice of time. So no run waits for a
// long list of another.
func (a *advancer) sweep(ctx context.Context) {
	pause := min(max(sweepEvery, sweepShare*a.took), sweepPause)
	a.sweepAt = time.Now().Add(sweepEvery + time.Duration(rand.Int64N(int64(sweepEvery)/4)))
	mine := false
	a.task(ctx, "find ended steps of flows", func(ctx context.Context, conn *sql.Conn) (err error) {
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

// sweepFirst reads the first page of steps of each run, and records which runs have more. It
// reports whether it has reached the end.
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

// sweepLong continues with the runs that have more than a page of steps.
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

// sweepPage processes the next page of steps after a step. ok is false if it has failed.
func (a *advancer) sweepPage(ctx context.Context, out []int64, after int64) (p swept, ok bool) {
	a.task(ctx, "find ended steps of flows", func(ctx context.Context, conn *sql.Conn) (err error) {
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
		a.took += r.readFor
		r.held = nil // the next sweep finds these steps
		a.keep(r, nil)
		return err
	})
	return p, ok && ctx.Err() == nil
}

// takeTurn reports whether this worker has the turn to sweep for the pause.
func (s statements) takeTurn(ctx context.Context, on jobs.Querier, pause time.Duration) (mine bool, err error) {
	err = on.QueryRowContext(ctx, s.turn, pause.Microseconds()).Scan(&mine)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return mine, err
}

// swept is a page of steps that a sweep has read.
type swept struct {
	last int64 // 0: the page was empty
	full bool  // the run may have more steps
}

// sweepPage processes the steps left among the next thousand after a step. It leaves the jobs of
// long lists to the next rounds, a slice of time each.
func (r *round) sweepPage(ctx context.Context, conn *sql.Conn, after int64) (p swept, err error) {
	begin := time.Now()
	left, err := r.page(ctx, conn, after)
	r.readFor = time.Since(begin)
	if err != nil {
		return p, err
	}
	var ended []int64
	var rest []movedStep
	through := int64(0) // end of a list that the next rounds continue, a slice of time each
	for _, m := range left {
		_, out := slices.BinarySearch(r.out, m.id)
		switch {
		case m.state == "", m.state == movedFull:
			p = swept{m.id, m.state == movedFull}
		case out:
		case m.state == "enqueued":
			ended = append(ended, m.id)
		case m.state == "ready" && stepID(m.id).item() > 0: // step of a long list
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

// page reads the next page of a sweep. Without the setting, the planner may take a long list for
// short. Then it sorts all steps of the list for each page.
func (s statements) page(ctx context.Context, conn *sql.Conn, after int64) (left []movedStep, err error) {
	err = pgdriver.InTx(ctx, conn, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SELECT set_config('enable_sort', 'off', true)`); err != nil {
			return err
		}
		left, err = pgdriver.QueryAll(ctx, tx, scanMoved, s.sweep, after)
		return err
	})
	return left, err
}
