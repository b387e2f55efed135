package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// spread is a consumer in partitions, which counts what it is given.
type spread struct {
	count  int
	handle func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
	n, sum atomic.Int64 // events, and their positions
}

func (s *spread) Name() string                    { return "spread" }
func (s *spread) Partitions() consumer.Partitions { return consumer.Partitions{Count: s.count} }

func (s *spread) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if err := s.handle(ctx, tx, e); err != nil {
		return err
	}
	s.sum.Add(e.GlobalPosition)
	s.n.Add(1)
	return nil
}

// works are what a handler in partitions does, with the events of a run and the
// least that 2, 4 and 8 partitions should be times one.
var works = []struct {
	name   string
	handle func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
	events func(size) int
	least  map[int]float64
}{
	{"sleeps 1 ms", func(context.Context, *sql.Tx, store.PersistedEvent) error {
		time.Sleep(time.Millisecond)
		return nil
	}, func(s size) int { return s.upserts / 2 }, map[int]float64{2: 1.95, 4: 3.8, 8: 7.4}},
	{"one upsert", func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `
INSERT INTO projection AS p (aggregate_id, events, last) VALUES ($1, 1, $2)
ON CONFLICT (aggregate_id) DO UPDATE SET events = p.events + 1, last = excluded.last`, e.AggregateID, e.GlobalPosition)
		return err
	}, func(s size) int { return s.upserts }, map[int]float64{2: 1.6, 4: 1, 8: 1}},
	{"nothing", func(context.Context, *sql.Tx, store.PersistedEvent) error { return nil },
		func(s size) int { return 10 * s.upserts }, map[int]float64{4: 0.85}},
}

// partitions measures one consumer over an old log, in 1 to 8 partitions, on one
// worker.
func partitions(ctx context.Context, l *lab) (rows []row, err error) {
	for _, w := range works {
		var one float64
		for _, n := range []int{1, 2, 4, 8} {
			c := &spread{count: n, handle: w.handle}
			events := w.events(l.size)
			var rate float64
			err := l.onSite(ctx, func(s *site) (err error) {
				rate, err = s.spreadOver(ctx, c, events)
				return err
			})
			if err != nil {
				return rows, fmt.Errorf("%s, %d partitions: %w", w.name, n, err)
			}
			if n == 1 {
				one = rate
			}
			r := row{
				part:     fmt.Sprintf("%s, partitions: %d", w.name, n),
				measured: fmt.Sprintf("%s events/s, %.2f times one", grouped(rate), rate/one), counted: events,
			}
			if least := w.least[n]; least > 0 {
				r.goal, r.reached = fmt.Sprintf(">= %.2f times one", least), rate/one >= least
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// fillKeys makes a log in which each event has a key of its own, so that chance
// makes the partitions about as large.
func (s *site) fillKeys(ctx context.Context, n int) error {
	_, err := s.db.ExecContext(ctx, `
INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
SELECT 'Order', 'aggregate-' || i, 1, gen_random_uuid(), 'OrderPlaced', convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, $1::int) AS i`, n)
	if err == nil {
		_, err = s.db.ExecContext(ctx, `VACUUM (FREEZE, ANALYZE) events`)
	}
	return err
}

// spreadOver lets a worker run a consumer whose parts are all there before the first
// event, and returns how many it handles in a second.
func (s *site) spreadOver(ctx context.Context, c *spread, events int) (rate float64, err error) {
	if _, err := s.db.ExecContext(ctx, `CREATE TABLE projection (aggregate_id TEXT PRIMARY KEY, events BIGINT NOT NULL, last BIGINT NOT NULL)`); err != nil {
		return 0, err
	}
	config, err := s.config()
	if err != nil {
		return 0, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	db.SetMaxIdleConns(idleConns(c.count))
	o, err := ops.New(s.db, nil)
	if err != nil {
		return 0, err
	}
	w := worker.New(db, storepostgres.NewStore(nil), []consumer.Consumer{c})
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.WithoutCancel(ctx)) }()
	defer func() {
		w.Stop()
		err = errors.Join(err, <-ended)
	}()
	at := func(position int64) func() (bool, error) {
		return func() (bool, error) {
			var there bool
			err := s.db.QueryRowContext(ctx, `
SELECT count(*) = $1::int AND coalesce(bool_and(EXISTS (SELECT FROM consumer_assignments AS a WHERE a.consumer_name = c.consumer_name)) AND min(last_position) >= $2::bigint, false)
FROM consumer_checkpoints AS c WHERE split_at IS NULL`, c.count, position).Scan(&there)
			return there, err
		}
	}
	if err := eventually(ctx, "the partitions", at(0)); err != nil {
		return 0, err
	}
	by := ops.By{Operator: "bench", Reason: "to begin at once"}
	if err := errors.Join(o.Pause(ctx, c.Name(), by), s.fillKeys(ctx, events), o.Resume(ctx, c.Name(), by)); err != nil {
		return 0, err
	}
	if err := until(ctx, "the first event", func() bool { return c.n.Load() > 0 }); err != nil {
		return 0, err
	}
	first, began := c.n.Load(), time.Now()
	if err := until(ctx, "all events", func() bool { return c.n.Load() >= int64(events) }); err != nil {
		return 0, err
	}
	rate = float64(int64(events)-first) / time.Since(began).Seconds()
	if err := eventually(ctx, "the last commit", at(int64(events))); err != nil {
		return 0, err
	}
	if want := int64(events) * int64(events+1) / 2; c.n.Load() != int64(events) || c.sum.Load() != want {
		return 0, fmt.Errorf("%d events were handled instead of %d", c.n.Load(), events)
	}
	return rate, nil
}
