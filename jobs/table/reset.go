package table

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/batch"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store"
)

// silence is a row in processing whose heartbeat has not changed for a while.
type silence struct {
	id        int64
	heartbeat sql.NullInt64 // the last heartbeat, in microseconds
}

// watch holds the silences that this worker has seen, and since when.
//
// An old heartbeat alone does not prove that a worker is lost. After an outage of the database all
// heartbeats are old and all workers live. So a worker resets only rows that it has itself seen
// silent, for as long as a heartbeat takes to come.
type watch map[silence]time.Time

// see records the silences of now. It returns the silences that have lasted for long.
func (w watch) see(all []silence, now time.Time, long time.Duration) (due []silence) {
	still := make(map[silence]bool, len(all))
	for _, s := range all {
		still[s] = true
		if since, known := w[s]; !known {
			w[s] = now
		} else if now.Sub(since) >= long {
			due = append(due, s)
		}
	}
	for s := range w {
		if !still[s] {
			delete(w, s)
		}
	}
	return due
}

// resetter resets the jobs of lost workers.
type resetter struct{ *env }

// run resets the jobs of lost workers until ctx ends. Every worker runs it. It passes over
// rows that another worker is about to reset.
func (r resetter) run(ctx context.Context) {
	known := watch{}
	for tick := r.store.settings.stalled / 4; backoff.Sleep(ctx, tick); {
		r.turns.resets.Begin()
		err := r.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
			return r.round(ctx, r.store.db.Plans.On(conn, conn), known)
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			clear(known) // heartbeats may have failed too
		}
		r.outcome(observe.ConditionReset, err)
		r.turns.resets.End()
	}
}

// round does one round. The database decides how old heartbeats are, and decides again in the
// statement that resets.
func (r resetter) round(ctx context.Context, conn store.Querier, known watch) error {
	silent, err := pgdriver.QueryAll(ctx, conn, pgdriver.Columns(func(s *silence) []any { return []any{&s.id, &s.heartbeat} }), r.sql.stalled)
	if err != nil {
		return fmt.Errorf("jobs/table: find stalled rows of %s: %w", r.store.settings.table, err)
	}
	due := known.see(silent, time.Now(), r.store.settings.stalled/2)
	out := r.begin(observe.ConditionReset)
	if len(due) < len(silent) {
		r.partly(observe.ConditionReset, nil)
	}
	due = slices.DeleteFunc(due, func(s silence) bool { return slices.Contains(out, s.id) })
	if len(due) == 0 {
		return nil
	}
	return batch.Each(due, func(due []silence) error { return r.reset(ctx, conn, due) },
		func(one silence, err error) error { return r.refuse(observe.ConditionReset, one.id, err) })
}

// reset resets the rows that are still silent.
func (r resetter) reset(ctx context.Context, conn store.Querier, due []silence) error {
	ids, heartbeats := silences(due)
	type row struct {
		id    int64
		state State
		age   int64 // in microseconds
	}
	rows, err := pgdriver.QueryAll(ctx, conn, pgdriver.Columns(func(one *row) []any { return []any{&one.id, &one.state, &one.age} }), r.sql.reset, ids, heartbeats)
	if err != nil {
		return fmt.Errorf("jobs/table: reset stalled rows of %s: %w", r.store.settings.table, err)
	}
	for _, one := range rows {
		if one.state == "" {
			if err := r.refuse(observe.ConditionReset, one.id, errUnchanged); err != nil {
				return err
			}
			continue
		}
		r.change(func(s *Status) { s.Reset++ })
		r.observers.Notify(observe.RowReset{ID: one.id, State: string(one.state), Age: time.Duration(one.age) * time.Microsecond})
	}
	return nil
}

// silences returns the IDs and heartbeats of silences as arrays in text form.
func silences(all []silence) (ids, heartbeats string) {
	a, b := "{", "{"
	for i, s := range all {
		if i > 0 {
			a, b = a+",", b+","
		}
		a += fmt.Sprint(s.id)
		if s.heartbeat.Valid {
			b += fmt.Sprint(s.heartbeat.Int64)
		} else {
			b += "NULL"
		}
	}
	return a + "}", b + "}"
}
