package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
)

// caughtUp is what a process found that went over a whole log.
type caughtUp struct {
	Rate   float64 // events a second
	Events int
	Memory int // the most it ever had, in MB; 0: not known here
}

// walkTask goes over the log with a consumer that does nothing.
func walkTask(ctx context.Context, r role) (any, error) { return r.overLog(ctx, r.walkLog) }

// readTask only reads it.
func readTask(ctx context.Context, r role) (any, error) { return r.overLog(ctx, r.readLog) }

func (r role) overLog(ctx context.Context, task func(context.Context, *site) (float64, int, error)) (found caughtUp, err error) {
	db, err := sql.Open("pgx", r.URL)
	if err != nil {
		return found, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	defer db.Close()
	if found.Rate, found.Events, err = task(ctx, &site{url: r.URL, db: db}); err != nil {
		return found, err
	}
	if kB, ok := strings.CutSuffix(field("/proc/self/status", "VmHWM"), " kB"); ok {
		if found.Memory, err = strconv.Atoi(kB); err != nil {
			return found, err
		}
		found.Memory >>= 10
	}
	return found, nil
}

func (r role) walkLog(ctx context.Context, s *site) (float64, int, error) {
	return s.walkAll(ctx, r.Name, worker.WithBatchSize(r.Batch))
}

func (r role) readLog(ctx context.Context, s *site) (rate float64, n int, err error) {
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM events`).Scan(&n); err != nil {
		return 0, 0, err
	}
	rate, err = readAll(ctx, s.db, n)
	return rate, n, err
}

// catchUp compares consumers with bare reading, on a small log and on a large
// one. Either is done by a process of its own, whose memory is measured.
func catchUp(ctx context.Context, l *lab) (rows []row, err error) {
	batches := []int{worker.DefaultConfig().BatchSize, 1000}
	least := []float64{0.35, 0.75} // of the control, on the large log
	first := make([]float64, len(batches))
	for i, events := range l.size.logs {
		// The small log takes a moment only: more passes.
		passes := max(1, min(2*l.size.passes, 2_000_000/events))
		g, err := l.catchUpOver(ctx, events, passes, batches)
		if err != nil {
			return rows, fmt.Errorf("%s events: %w", grouped(events), err)
		}
		of := " of " + grouped(events) + " events"
		rows = append(rows, row{part: "control: database/sql" + of, measured: fmt.Sprintf("%s events/s, peak %d MB", grouped(g[0].Rate), g[0].Memory)})
		for b, batch := range batches {
			x := g[b+1]
			ratio := x.Rate / g[0].Rate
			rows = append(rows, row{
				part:     fmt.Sprintf("WithBatchSize(%d)", batch) + of,
				measured: fmt.Sprintf("%s events/s, %.0f%% of the control, peak %d MB", grouped(x.Rate), 100*ratio, x.Memory),
				counted:  x.Events, ratio: ratio,
			})
			if i == 0 {
				first[b] = ratio
				continue
			}
			// Nine tenths of the small log's: that takes too short a time for more.
			last := &rows[len(rows)-1]
			last.least = max(0.9*first[b], least[b])
			last.goal, last.reached = fmt.Sprintf(">= %.0f%% and 0.9 x %.0f%%", 100*least[b], 100*first[b]), ratio >= last.least
		}
	}
	return rows, nil
}

// catchUpOver goes over a log in turns: bare, and in batches. It returns the best of
// each, with the memory of the hungriest.
func (l *lab) catchUpOver(ctx context.Context, events, passes int, batches []int) (best []caughtUp, err error) {
	best = make([]caughtUp, 1+len(batches))
	err = l.onSite(ctx, func(s *site) error {
		// Readers use neither these keys nor the server's log, which would
		// take the longest to fill.
		if _, err := s.db.ExecContext(ctx, `
ALTER TABLE events DROP CONSTRAINT events_event_id_key;
ALTER TABLE events DROP CONSTRAINT events_aggregate_type_aggregate_id_aggregate_version_key;
ALTER TABLE events SET UNLOGGED`); err != nil {
			return err
		}
		if err := s.fill(ctx, events); err != nil {
			return err
		}
		for pass := range passes {
			for i := range best {
				r := role{Task: "read", Name: fmt.Sprintf("catch_up_%d_%d", pass, i)}
				if i > 0 {
					r.Task, r.Batch = "walk", batches[i-1]
				}
				found, err := ask[caughtUp](ctx, s, r)
				if err != nil {
					return err
				}
				if found.Events != events {
					return fmt.Errorf("%d events in the log, should be %d", found.Events, events)
				}
				b := &best[i]
				b.Rate, b.Events, b.Memory = max(b.Rate, found.Rate), b.Events+found.Events, max(b.Memory, found.Memory)
			}
		}
		return nil
	})
	return best, err
}

const window = 10_000

// readAll reads a log of so many events as plainly as it can be done, and
// returns events a second.
func readAll(ctx context.Context, db *sql.DB, events int) (rate float64, err error) {
	began, n := time.Now(), 0
	for after := int64(0); ; {
		page := make([]store.PersistedEvent, 0, window)
		if page, err = readWindow(ctx, db, after, window, page); err != nil {
			return 0, err
		}
		n += len(page)
		if len(page) < window {
			break
		}
		after = page[len(page)-1].GlobalPosition
	}
	if n != events {
		return 0, fmt.Errorf("database/sql read %d events of %d", n, events)
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

func readWindow(ctx context.Context, q store.Querier, after int64, most int, page []store.PersistedEvent) ([]store.PersistedEvent, error) {
	rows, err := q.QueryContext(ctx, `
SELECT global_position, aggregate_version, aggregate_type, aggregate_id, event_type, event_id, event_version,
	payload, metadata, trace_id, correlation_id, causation_id, created_at
FROM events WHERE global_position > $1 ORDER BY global_position LIMIT $2`, after, most)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // Err has told everything
	for rows.Next() {
		var e store.PersistedEvent
		if err := rows.Scan(&e.GlobalPosition, &e.AggregateVersion, &e.AggregateType, &e.AggregateID, &e.EventType, &e.EventID, &e.EventVersion,
			&e.Payload, &e.Metadata, &e.TraceID, &e.CorrelationID, &e.CausationID, &e.CreatedAt); err != nil {
			return nil, err
		}
		page = append(page, e)
	}
	return page, rows.Err()
}
