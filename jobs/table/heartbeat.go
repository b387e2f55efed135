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

// heart writes the heartbeats. It has a connection of its own, since handlers may have taken all
// others.
type heart struct {
	*env
	failover *runtime.Failover
	conn     *sql.Conn // nil: lost
}

// run writes the heartbeats of the jobs in flight until ctx ends.
func (h *heart) run(ctx context.Context) {
	defer func() {
		if h.conn != nil {
			_ = h.conn.Close()
		}
	}()
	pause := h.opts.HeartbeatInterval
	for failures := 0; backoff.Sleep(ctx, pause); {
		before := h.inFlight.All()
		h.turns.beats.Begin()
		err := h.beat(ctx, before, h.limitAfter(failures))
		if ctx.Err() != nil {
			return
		}
		h.outcome(observe.ConditionHeartbeat, err)
		h.turns.beats.End()
		pause = h.opts.HeartbeatInterval
		if failures++; err != nil {
			h.failover.Forget()
			pause = min(pause, backoff.Session(failures))
			continue
		}
		failures = 0
		if len(before) > 0 {
			h.change(func(s *Status) { s.LastHeartbeat = time.Now() })
		}
	}
}

// limitAfter bounds the statements of a heartbeat. A statement without an answer is given up before
// the jobs seem lost. After each failure the bound doubles, for a slow server.
func (h *heart) limitAfter(failures int) time.Duration {
	limit := h.store.settings.stalled / 3
	for ; failures > 0 && limit < h.limit; failures-- {
		limit *= 2
	}
	return min(limit, h.limit)
}

// connect makes sure that the heartbeats have a connection. A login may take long.
// Handlers may also have taken all connections.
func (h *heart) connect(ctx context.Context) (err error) {
	if h.conn != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.limit)
	defer cancel()
	h.conn, err = h.store.db.Conn(ctx)
	return err
}

// beat writes the heartbeats. It ends the runs that have lost their jobs or were cancelled. before
// are the runs in flight before the statement, so a job that is claimed meanwhile is not missing in
// the answer. Runs that the settler has are left to the settler.
//
// If a heartbeat does not find a claim, the claim may be on another server, to which the pool
// leads.
func (h *heart) beat(ctx context.Context, before []*run, limit time.Duration) error {
	if err := h.connect(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen := map[claim]bool{}
	server, err := h.write(ctx, before, seen)
	if err != nil {
		if pgdriver.IsGone(h.conn) {
			h.pool.SweepNow.Send()
		}
		pgdriver.Discard(h.conn)
		h.conn = nil
		return err
	}
	for _, r := range before {
		canceled, is := seen[r.Claim]
		if is {
			r.server, r.missed = server, time.Time{}
		}
		switch {
		case r.Phase() == jobrun.Settling || !h.inFlight.Has(r):
		case is && canceled:
			r.End(ErrCanceled)
		case !is && !r.byTx.Load() && r.isLost(server, h.store.settings.stalled): // the handler may have committed its CompleteTx
			r.End(ErrClaimLost)
		}
	}
	return nil
}

// write writes the heartbeats of before, records the answer in seen, and returns the server. If
// the pool leads to another server, write writes nothing.
func (h *heart) write(ctx context.Context, before []*run, seen map[claim]bool) (server string, err error) {
	if server, err = runtime.Server(ctx, h.conn); err == nil && (h.failover.Beat(server) || h.failover.HasDiffered()) {
		err = runtime.ErrFailover
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("jobs/table: %w", err)
	case len(before) == 0 && h.failure(observe.ConditionHeartbeat) == nil:
		return server, nil
	}
	out := pgdriver.Array(h.begin(observe.ConditionHeartbeat))
	return server, batch.Each(before, func(runs []*run) error {
		return h.beatOn(ctx, h.store.db.Plans.On(h.conn, h.conn), runs, out, seen)
	}, func(r *run, err error) error {
		if err := h.refuse(observe.ConditionHeartbeat, r.Claim.ID, err); err != nil {
			return err
		}
		return h.beatOn(ctx, h.store.db.Plans.On(h.conn, h.conn), []*run{r}, pgdriver.Array([]int64{r.Claim.ID}), seen)
	})
}

// beatOn writes the heartbeats of runs. It records in seen the runs that still have their rows, and
// whether they were cancelled. It writes nothing into the rows of out.
func (h *heart) beatOn(ctx context.Context, on store.Querier, runs []*run, out string, seen map[claim]bool) error {
	claims := make([]claim, len(runs))
	for i, r := range runs {
		claims[i] = r.Claim
	}
	ids, numbers := queue.Arrays(claims)
	type row struct {
		claim
		canceled, unchanged bool
	}
	rows, err := pgdriver.QueryAll(ctx, on, pgdriver.Columns(func(r *row) []any { return []any{&r.ID, &r.Claim, &r.canceled, &r.unchanged} }), h.sql.beat, ids, numbers, h.host, out)
	if err != nil {
		return fmt.Errorf("jobs/table: write the heartbeats of rows of %s: %w", h.store.settings.table, err)
	}
	for _, r := range rows {
		seen[r.claim] = r.canceled
		if r.unchanged {
			if err := h.refuse(observe.ConditionHeartbeat, r.ID, errUnchanged); err != nil {
				return err
			}
		}
	}
	return nil
}
