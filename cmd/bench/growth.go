package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pgfrontier/worker"
)

// grown is what a process found that went over a whole log.
type grown struct {
	Rate   float64 // events a second
	Events int
	Memory int // the most it ever had, in MB; 0: not known here
}

// walkTask goes over the log with a consumer that does nothing.
func walkTask(ctx context.Context, r role) (any, error) { return r.overLog(ctx, r.walkLog) }

// readTask only reads it.
func readTask(ctx context.Context, r role) (any, error) { return r.overLog(ctx, r.readLog) }

func (r role) overLog(ctx context.Context, task func(context.Context, *site) (float64, int, error)) (found grown, err error) {
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

// growth compares consumers with bare reading, on a small log and on a large
// one. Either is done by a process of its own, whose memory is looked at.
func growth(ctx context.Context, l *lab) (rows []row, err error) {
	batches := []int{worker.DefaultConfig().BatchSize, 1000}
	first := make([]float64, len(batches))
	for i, events := range l.size.logs {
		// The small log takes a moment only: more passes.
		passes := max(1, min(2*l.size.passes, 2_000_000/events))
		g, err := l.grow(ctx, events, passes, batches)
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
			// Nine tenths: the small log takes too short a time for more.
			last := &rows[len(rows)-1]
			last.least = 0.9 * first[b]
			last.goal, last.reached = fmt.Sprintf(">= 0.9 x %.0f%%", 100*first[b]), ratio >= last.least
		}
	}
	return rows, nil
}

// grow goes over a log in turns: bare, and in batches. It returns the best of
// each, with the memory of the hungriest.
func (l *lab) grow(ctx context.Context, events, passes int, batches []int) (best []grown, err error) {
	best = make([]grown, 1+len(batches))
	err = l.onSite(ctx, func(s *site) error {
		// Readers look neither at these keys nor at the server's log, which would
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
				r := role{Task: "read", Name: fmt.Sprintf("growth_%d_%d", pass, i)}
				if i > 0 {
					r.Task, r.Batch = "walk", batches[i-1]
				}
				found, err := ask[grown](ctx, s, r)
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
