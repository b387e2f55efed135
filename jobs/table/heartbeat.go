package table

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/queue"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// heartbeat writes the heartbeats of the jobs in flight until ctx ends. It has a connection of its
// own, since handlers may have taken all others.
func (w *Worker) heartbeat(ctx context.Context) {
	defer func() {
		if w.heartbeatConn != nil {
			_ = w.heartbeatConn.Close()
		}
	}()
	pause := w.opts.HeartbeatInterval
	for failures := 0; backoff.Sleep(ctx, pause); {
		before := w.inFlight.All()
		w.turns.beats.Begin()
		err := w.beat(ctx, before, w.beatLimit(failures))
		if ctx.Err() != nil {
			return
		}
		w.outcome(observe.ConditionHeartbeat, err)
		w.turns.beats.End()
		pause = w.opts.HeartbeatInterval
		if failures++; err != nil {
			w.failover.Forget()
			pause = min(pause, backoff.Session(failures))
			continue
		}
		failures = 0
		if len(before) > 0 {
			w.change(func(s *Status) { s.LastHeartbeat = time.Now() })
		}
	}
}

// beatLimit bounds the statements of a heartbeat. A statement without an answer is given up before
// the jobs seem lost. After each failure the bound doubles, for a slow server.
func (w *Worker) beatLimit(failures int) time.Duration {
	limit := w.store.settings.stalled / 3
	for ; failures > 0 && limit < w.limit; failures-- {
		limit *= 2
	}
	return min(limit, w.limit)
}

// connectHeartbeat makes sure that the heartbeats have a connection. A login may take long.
// Handlers may also have taken all connections.
func (w *Worker) connectHeartbeat(ctx context.Context) (err error) {
	if w.heartbeatConn != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	w.heartbeatConn, err = w.store.db.Conn(ctx)
	return err
}

// beat writes the heartbeats. It ends the runs that have lost their jobs or were cancelled. before
// are the runs in flight before the statement, so a job that is claimed meanwhile is not missing in
// the answer. Runs that the settler has are left to the settler.
//
// If a heartbeat does not find a claim, the claim may be on another server, to which the pool
// leads.
func (w *Worker) beat(ctx context.Context, before []*run, limit time.Duration) error {
	if err := w.connectHeartbeat(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen := map[claim]bool{}
	server, err := w.writeBeat(ctx, before, seen)
	if err != nil {
		if pgdriver.IsGone(w.heartbeatConn) {
			w.pool.SweepNow.Send()
		}
		pgdriver.Discard(w.heartbeatConn)
		w.heartbeatConn = nil
		return err
	}
	for _, r := range before {
		canceled, is := seen[r.Claim]
		if is {
			r.server, r.missed = server, time.Time{}
		}
		switch {
		case r.Phase() == jobrun.Settling || !w.inFlight.Has(r):
		case is && canceled:
			r.End(ErrCanceled)
		case !is && !r.byTx.Load() && r.isLost(server, w.store.settings.stalled): // the handler may have committed its CompleteTx
			r.End(ErrClaimLost)
		}
	}
	return nil
}

// writeBeat writes the heartbeats of before, records the answer in seen, and returns the server. If
// the pool leads to another server, writeBeat writes nothing.
func (w *Worker) writeBeat(ctx context.Context, before []*run, seen map[claim]bool) (server string, err error) {
	if server, err = runtime.Server(ctx, w.heartbeatConn); err == nil && (w.failover.Beat(server) || w.failover.HasDiffered()) {
		err = runtime.ErrFailover
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("jobs/table: %w", err)
	case len(before) == 0 && w.Status().HeartbeatError == nil:
		return server, nil
	}
	out := pgdriver.Array(w.begin(observe.ConditionHeartbeat))
	return server, batch.Each(before, func(runs []*run) error {
		return w.beatOn(ctx, w.store.db.Plans.On(w.heartbeatConn, w.heartbeatConn), runs, out, seen)
	}, func(r *run, err error) error {
		if err := w.refuse(observe.ConditionHeartbeat, r.Claim.ID, err); err != nil {
			return err
		}
		return w.beatOn(ctx, w.store.db.Plans.On(w.heartbeatConn, w.heartbeatConn), []*run{r}, pgdriver.Array([]int64{r.Claim.ID}), seen)
	})
}

// beatOn writes the heartbeats of runs. It records in seen the runs that still have their rows, and
// whether they were cancelled. It writes nothing into the rows of out.
func (w *Worker) beatOn(ctx context.Context, on store.Querier, runs []*run, out string, seen map[claim]bool) error {
	claims := make([]claim, len(runs))
	for i, r := range runs {
		claims[i] = r.Claim
	}
	ids, numbers := queue.Arrays(claims)
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
