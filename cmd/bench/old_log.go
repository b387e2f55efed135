package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// rare is the type of every hundredth event of the history.
const rare = "Rare"

// history returns a site with an old log. It is made once.
func (l *lab) history(ctx context.Context) (*site, error) {
	if l.past != nil {
		return l.past, nil
	}
	s, err := l.newSite(ctx)
	if err != nil {
		return nil, err
	}
	l.past = s
	return s, s.fill(ctx, l.size.history)
}

// fill makes an old log of n events.
func (s *site) fill(ctx context.Context, n int) error {
	for _, statement := range []string{
		fmt.Sprintf(`
INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
SELECT CASE WHEN i %% 100 = 0 THEN '%s' ELSE 'Order' END, 'aggregate-' || i / 10, i %% 10 + 1, gen_random_uuid(), 'OrderPlaced', convert_to(repeat('x', 200), 'UTF8')
FROM generate_series(1, %d) AS i`, rare, n),
		`VACUUM (FREEZE, ANALYZE) events`, // so that the first to read it does not pay for all
		`CHECKPOINT`,
	} {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// walker is a consumer that only records its position.
type walker struct {
	name        string
	n           int
	sum         int64 // of the positions
	disordered  bool
	first, last int64
	began, end  time.Time

	final   int64         // the position to reach
	reached chan struct{} // closed there
}

func (w *walker) Name() string { return w.name }

func (w *walker) Handle(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	w.end = time.Now()
	if w.n == 0 {
		w.began, w.first = w.end, e.GlobalPosition
	}
	w.disordered = w.disordered || e.GlobalPosition <= w.last
	w.n++
	w.sum += e.GlobalPosition
	w.last = e.GlobalPosition
	if w.last == w.final {
		close(w.reached)
	}
	return nil
}

// rate is how many positions a second it went over, from its first event to
// its last.
func (w *walker) rate() float64 { return float64(w.last-w.first) / w.end.Sub(w.began).Seconds() }

// walk lets a worker with one consumer go over the log.
func (s *site) walk(ctx context.Context, c consumer.Consumer, w *walker, opts ...worker.Option) (rate float64, counted int, err error) {
	return s.tour(ctx, c, w, func(ctx context.Context) error {
		return s.work(ctx, 1, []consumer.Consumer{c}, opts, w.arrive)
	})
}

// tour goes over the log with a walker, checks what that was given, and
// returns positions a second and how many events were handled.
func (s *site) tour(ctx context.Context, c consumer.Consumer, w *walker, walk func(context.Context) error) (rate float64, counted int, err error) {
	scope := ""
	if c, ok := c.(consumer.ScopedConsumer); ok && len(c.AggregateTypes()) > 0 {
		scope = rare
	}
	var n int
	var sum, checkpoint int64
	if err := s.db.QueryRowContext(ctx, `
SELECT count(*), sum(global_position)::bigint, max(global_position) FROM events WHERE $1::text IN ('', aggregate_type)`, scope).Scan(&n, &sum, &w.final); err != nil {
		return 0, 0, err
	}
	w.reached = make(chan struct{})
	if err := walk(ctx); err != nil {
		return 0, 0, err
	}
	if w.n != n || w.sum != sum || w.disordered {
		return 0, 0, fmt.Errorf("%s was given %d events (sum of positions %d, out of order: %t), should be %d (%d, false)", w.name, w.n, w.sum, w.disordered, n, sum)
	}
	if err := s.db.QueryRowContext(ctx, `SELECT last_position FROM consumer_checkpoints WHERE consumer_name = $1::text`, w.name).Scan(&checkpoint); err != nil {
		return 0, 0, err
	}
	if checkpoint != w.final {
		return 0, 0, fmt.Errorf("the checkpoint of %s is %d, should be %d", w.name, checkpoint, w.final)
	}
	return w.rate(), n, nil
}

// arrive waits until the walker has reached the end of the log.
func (w *walker) arrive(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*limit, fmt.Errorf("%s has not reached position %d", w.name, w.final))
	defer cancel()
	select {
	case <-w.reached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// walkAll lets a consumer of all events go over the history.
func (s *site) walkAll(ctx context.Context, name string, opts ...worker.Option) (rate float64, counted int, err error) {
	w := &walker{name: name}
	return s.walk(ctx, w, w, opts...)
}
