package table

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
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
		w.turns.beats.Begin()
		err := w.beat(ctx, before, w.beatLimit(failures))
		if ctx.Err() != nil {
			return
		}
		w.outcome(observe.ConditionHeartbeat, err)
		w.turns.beats.End()
		pause = w.opts.HeartbeatInterval
		if failures++; err != nil {
			w.home.forget()
			pause = min(pause, backoff.Session(failures))
			continue
		}
		failures = 0
		if len(before) > 0 {
			w.change(func(s *Status) { s.LastHeartbeat = time.Now() })
		}
	}
}

// beatLimit bounds the statements of a heartbeat. What does not answer is given up before
// the jobs seem lost. A server that is slow gets twice as long after each failure.
func (w *Worker) beatLimit(failures int) time.Duration {
	limit := w.store.settings.stalled / 3
	for ; failures > 0 && limit < w.limit; failures-- {
		limit *= 2
	}
	return min(limit, w.limit)
}

// connectPulse makes sure that the heartbeats have a connection. A login may take long, and so
// may handlers that have taken all connections.
func (w *Worker) connectPulse(ctx context.Context) (err error) {
	if w.pulse != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	w.pulse, err = w.store.db.Conn(ctx)
	return err
}

// beat writes the heartbeats, and ends the runs that have lost their jobs or were
// cancelled. It takes the runs that were in hand before: what is claimed meanwhile is
// not missed in the answer. A run that the settler has is the settler's affair.
//
// A claim that it does not find may be on another server, where the pool leads.
func (w *Worker) beat(ctx context.Context, before []*run, limit time.Duration) error {
	if err := w.connectPulse(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen := map[claim]bool{}
	server, err := w.writeBeat(ctx, before, seen)
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
		if is {
			r.server, r.missed = server, time.Time{}
		}
		switch {
		case !runs || !w.hand.has(r):
		case is && canceled:
			r.end(ErrCanceled)
		case !is && !byTx && r.isLost(server, w.store.settings.stalled): // the handler may have committed its CompleteTx
			r.end(ErrClaimLost)
		}
	}
	return nil
}

// writeBeat notes in seen what beatOn does, and returns on which server. It writes nothing
// if the pool leads to another.
func (w *Worker) writeBeat(ctx context.Context, before []*run, seen map[claim]bool) (server int64, err error) {
	server, err = findServer(ctx, w.pulse)
	switch {
	case err != nil:
		return 0, err
	case w.home.beatsAt(server, w.store.settings.stalled):
		return 0, errElsewhere
	case len(before) == 0 && w.Status().HeartbeatError == nil:
		return server, nil
	}
	out := pgdriver.Array(w.begin(observe.ConditionHeartbeat))
	return server, batch.Each(before, func(runs []*run) error { return w.beatOn(ctx, w.store.db.Plans.On(w.pulse, w.pulse), runs, out, seen) }, func(r *run, err error) error {
		if err := w.refuse(observe.ConditionHeartbeat, r.claim.ID, err); err != nil {
			return err
		}
		return w.beatOn(ctx, w.store.db.Plans.On(w.pulse, w.pulse), []*run{r}, pgdriver.Array([]int64{r.claim.ID}), seen)
	})
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
			if err := w.refuse(observe.ConditionHeartbeat, r.ID, errUnchanged); err != nil {
				return err
			}
		}
	}
	return nil
}
