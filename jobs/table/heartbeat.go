package table

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// heartbeat writes the heartbeats of the jobs in hand until ctx ends. It has a
// connection of its own: handlers may have taken all others.
func (w *Worker) heartbeat(ctx context.Context) {
	defer func() {
		if w.pulse != nil {
			_ = w.pulse.Close()
		}
	}()
	pause := w.opts.HeartbeatInterval
	for failures := 0; backoff.Sleep(ctx, pause); {
		before := w.hand.all()
		if len(before) == 0 && w.Status().HeartbeatError == nil {
			continue
		}
		w.turns.beats.Begin()
		err := w.beat(ctx, before)
		if ctx.Err() != nil {
			return
		}
		w.outcome(Heartbeating, err)
		w.turns.beats.End()
		pause = w.opts.HeartbeatInterval
		if failures++; err != nil {
			pause = min(pause, backoff.Session(failures))
			continue
		}
		failures = 0
		w.change(func(s *Status) { s.LastHeartbeat = time.Now() })
	}
}

// beat writes the heartbeats, and ends the runs that have lost their jobs or were
// cancelled. It takes the runs that were in hand before: what is claimed meanwhile is
// not missed in the answer. A run that the settler has is the settler's affair.
func (w *Worker) beat(ctx context.Context, before []*run) error {
	limit := min(w.limit, w.store.settings.stalled/3)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if w.pulse == nil {
		conn, err := w.store.db.Conn(ctx)
		if err != nil {
			return err
		}
		w.pulse = conn
	}
	seen := map[claim]bool{}
	out := array(w.begin(Heartbeating))
	err := halved(before, func(runs []*run) error { return w.beatOn(ctx, w.pulse, runs, out, seen) }, func(r *run, err error) error {
		if err := w.refuse(Heartbeating, r.claim.ID, err); err != nil {
			return err
		}
		return w.beatOn(ctx, w.pulse, []*run{r}, array([]int64{r.claim.ID}), seen)
	})
	if err != nil {
		if pgdriver.IsGone(w.pulse) {
			w.sweepNow.Send()
		}
		pgdriver.Discard(w.pulse)
		w.pulse = nil
		return err
	}
	for _, r := range before {
		canceled, is := seen[r.claim]
		runs, byTx := r.runs()
		switch {
		case !runs || !w.hand.has(r):
		case is && canceled:
			r.end(ErrCanceled)
		case !is && !byTx: // the handler may have committed its CompleteTx
			r.end(ErrClaimLost)
		}
	}
	return nil
}

// beatOn notes in seen the runs whose rows are still theirs, and whether they were
// cancelled. It writes nothing into the rows that are left out.
func (w *Worker) beatOn(ctx context.Context, on store.Querier, runs []*run, out string, seen map[claim]bool) error {
	claims := make([]claim, len(runs))
	for i, r := range runs {
		claims[i] = r.claim
	}
	ids, numbers := arrays(claims)
	type row struct {
		claim
		canceled, unchanged bool
	}
	rows, err := pgdriver.QueryAll(ctx, on, func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.ID, &r.Claim, &r.canceled, &r.unchanged)
		return r, err
	}, w.sql.beat, ids, numbers, w.host, out)
	if err != nil {
		return fmt.Errorf("jobs/table: write the heartbeats of rows of %s: %w", w.store.settings.table, err)
	}
	for _, r := range rows {
		seen[r.claim] = r.canceled
		if r.unchanged {
			if err := w.refuse(Heartbeating, r.ID, errUnchanged); err != nil {
				return err
			}
		}
	}
	return nil
}
