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

// resetStalled resets the jobs of lost workers until ctx ends. Every worker runs it. It passes over
// rows that another worker is about to reset.
func (w *Worker) resetStalled(ctx context.Context) {
	known := watch{}
	for tick := w.store.settings.stalled / 4; backoff.Sleep(ctx, tick); {
		w.turns.resets.Begin()
		err := w.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
			return w.resetOn(ctx, w.store.db.Plans.On(conn, conn), known)
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			clear(known) // heartbeats may have failed too
		}
		w.outcome(observe.ConditionReset, err)
		w.turns.resets.End()
	}
}

// resetOn does one round. The database decides how old heartbeats are, and decides again in the
// statement that resets.
func (w *Worker) resetOn(ctx context.Context, conn store.Querier, known watch) error {
	silent, err := pgdriver.QueryAll(ctx, conn, func(rows *sql.Rows) (s silence, err error) {
		err = rows.Scan(&s.id, &s.heartbeat)
		return s, err
	}, w.sql.stalled)
	if err != nil {
		return fmt.Errorf("jobs/table: find stalled rows of %s: %w", w.store.settings.table, err)
	}
	due := known.see(silent, time.Now(), w.store.settings.stalled/2)
	out := w.begin(observe.ConditionReset)
	if len(due) < len(silent) {
		w.partly(observe.ConditionReset, nil)
	}
	due = slices.DeleteFunc(due, func(s silence) bool { return slices.Contains(out, s.id) })
	if len(due) == 0 {
		return nil
	}
	return batch.Each(due, func(due []silence) error { return w.resetRows(ctx, conn, due) },
		func(one silence, err error) error { return w.refuse(observe.ConditionReset, one.id, err) })
}

// resetRows resets the rows that are still silent.
func (w *Worker) resetRows(ctx context.Context, conn store.Querier, due []silence) error {
	ids, heartbeats := silences(due)
	type row struct {
		id    int64
		state State
		age   int64 // in microseconds
	}
	rows, err := pgdriver.QueryAll(ctx, conn, func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.id, &r.state, &r.age)
		return r, err
	}, w.sql.reset, ids, heartbeats)
	if err != nil {
		return fmt.Errorf("jobs/table: reset stalled rows of %s: %w", w.store.settings.table, err)
	}
	for _, r := range rows {
		if r.state == "" {
			if err := w.refuse(observe.ConditionReset, r.id, errUnchanged); err != nil {
				return err
			}
			continue
		}
		w.change(func(s *Status) { s.Reset++ })
		w.observers.Notify(observe.RowReset{ID: r.id, State: string(r.state), Age: time.Duration(r.age) * time.Microsecond})
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
