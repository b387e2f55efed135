package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// spread is a consumer in partitions, which counts what it is given.
type spread struct {
	count       int
	handle      func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
	n, sum      atomic.Int64 // events, and their positions
	first, last atomic.Int64 // when it was given them, in nanoseconds since 1970
}

func (s *spread) Name() string                    { return "spread" }
func (s *spread) Partitions() consumer.Partitions { return consumer.Partitions{Count: s.count} }

func (s *spread) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if err := s.handle(ctx, tx, e); err != nil {
		return err
	}
	now := time.Now().UnixNano()
	s.first.CompareAndSwap(0, now)
	s.last.Store(now)
	s.sum.Add(e.GlobalPosition)
	s.n.Add(1)
	return nil
}

// given is what a process of such a consumer was given.
type given struct {
	N, Sum, First, Last int64

	server time.Duration // CPU time that the server used meanwhile; 0: not known
}

func (s *spread) given() given {
	return given{N: s.n.Load(), Sum: s.sum.Load(), First: s.first.Load(), Last: s.last.Load()}
}

// and adds up what two processes were given.
func (g given) and(o given) given {
	switch {
	case g.N == 0:
		return o
	case o.N == 0:
		return g
	}
	return given{N: g.N + o.N, Sum: g.Sum + o.Sum, First: min(g.First, o.First), Last: max(g.Last, o.Last)}
}

// rate returns how many events were handled in a second. It fails if they are not the
// events 1 to n, each once.
func (g given) rate(n int) (float64, error) {
	if want := int64(n) * int64(n+1) / 2; g.N != int64(n) || g.Sum != want {
		return 0, fmt.Errorf("%d events were handled instead of %d", g.N, n)
	}
	return float64(n) / (time.Duration(g.Last - g.First)).Seconds(), nil
}

// works are what a handler in partitions does, with the events of a run and the
// least that 2, 4 and 8 partitions should be times one. Where partitions are about as
// many times faster, they get as many times the events: of few, chance would give one
// partition too many.
var works = []struct {
	name   string
	handle func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error
	events func(s size, n int) int // in n partitions
	least  map[int]float64
}{
	{"sleeps 1 ms", func(context.Context, *sql.Tx, store.PersistedEvent) error {
		time.Sleep(time.Millisecond)
		return nil
	}, func(s size, n int) int { return n * s.upserts / 2 }, map[int]float64{2: 1.95, 4: 3.8, 8: 7.4}},
	{"one upsert", func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `
INSERT INTO projection AS p (aggregate_id, events, last) VALUES ($1, 1, $2)
ON CONFLICT (aggregate_id) DO UPDATE SET events = p.events + 1, last = excluded.last`, e.AggregateID, e.GlobalPosition)
		return err
	}, func(s size, _ int) int { return s.upserts }, map[int]float64{2: 1.6, 4: 1, 8: 1}},
	{"nothing", func(context.Context, *sql.Tx, store.PersistedEvent) error { return nil },
		func(s size, _ int) int { return 10 * s.upserts }, map[int]float64{4: 0.85}},
}

// partitions measures one consumer over an old log, in 1 to 8 partitions: on one
// worker, and on as many processes with a worker each.
func partitions(ctx context.Context, l *lab) (rows []row, err error) {
	for i, w := range works {
		events := func(n int) int { return w.events(l.size, n) }
		more, err := l.partitionsOn(ctx, w.name+", one worker", w.least, events, func(s *site, n int) (given, error) {
			return s.spreadInProcess(ctx, &spread{count: n, handle: w.handle}, events(n))
		})
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
		if i > 0 {
			continue // all processes share the processors
		}
		more, err = l.partitionsOn(ctx, w.name+", a process each", w.least, events, func(s *site, n int) (given, error) {
			return s.spreadOverProcesses(ctx, n, events(n))
		})
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// partitionsOn measures 1 to 8 partitions.
func (l *lab) partitionsOn(ctx context.Context, part string, least map[int]float64, events func(n int) int, measure func(s *site, n int) (given, error)) (rows []row, err error) {
	var one float64
	for _, n := range []int{1, 2, 4, 8} {
		part := fmt.Sprintf("%s, partitions: %d", part, n)
		var rate float64
		var g given
		err := l.onSite(ctx, func(s *site) (err error) {
			if g, err = measure(s, n); err == nil {
				rate, err = g.rate(events(n))
			}
			return err
		})
		if err != nil {
			return rows, fmt.Errorf("%s: %w", part, err)
		}
		if n == 1 {
			one = rate
		}
		r := row{part: part, measured: fmt.Sprintf("%s events/s, %.2f times one", grouped(rate), rate/one), counted: events(n)}
		if g.server > 0 {
			r.measured += fmt.Sprintf(", the server's CPU %.0f µs an event", float64(g.server.Microseconds())/float64(events(n)))
		}
		if least := least[n]; least > 0 {
			r.goal, r.reached = fmt.Sprintf(">= %.2f times one", least), rate/one >= least
		}
		rows = append(rows, r)
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

// spreadInProcess lets one worker handle the events of a log.
func (s *site) spreadInProcess(ctx context.Context, c *spread, events int) (given, error) {
	var server time.Duration
	err := s.work(ctx, 1, []consumer.Consumer{c}, nil, func(ctx context.Context) (err error) {
		server, err = s.goThrough(ctx, c.count, events)
		return err
	})
	g := c.given()
	g.server = server
	return g, err
}

// spreadOverProcesses lets as many processes as there are partitions do so, with a
// worker each.
func (s *site) spreadOverProcesses(ctx context.Context, n, events int) (all given, err error) {
	var processes []*process
	defer func() {
		for _, p := range processes {
			p.Kill()
		}
	}()
	for i := range n {
		p, err := s.start(role{Task: "spread", Name: fmt.Sprintf("process-%d", i+1), Partitions: n})
		if err != nil {
			return all, err
		}
		processes = append(processes, p)
	}
	err = eventually(ctx, "each process to have a partition", func() (shared bool, err error) {
		err = s.db.QueryRowContext(ctx, `
SELECT count(DISTINCT worker_id) = $1::int FROM consumer_assignments JOIN consumer_checkpoints USING (consumer_name) WHERE split_at IS NULL`, n).Scan(&shared)
		return shared, err
	})
	var server time.Duration
	if err == nil {
		server, err = s.goThrough(ctx, n, events)
	}
	for _, p := range processes {
		var g given
		if err == nil {
			err = p.end(ctx, syscall.SIGTERM)
		}
		if err == nil {
			err = json.Unmarshal(p.out.Bytes(), &g)
		}
		all = all.and(g)
	}
	all.server = server
	return all, err
}

// spreadTask runs a worker of a consumer in partitions until the process is asked to
// end.
func spreadTask(ctx context.Context, r role) (any, error) {
	db, err := sql.Open("pgx", r.URL)
	if err != nil {
		return nil, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	defer db.Close()
	db.SetMaxIdleConns(idleConns(r.Partitions))
	c := &spread{count: r.Partitions, handle: works[0].handle}
	err = worker.New(db, storepostgres.NewStore(nil), []consumer.Consumer{c}, worker.WithSlog(logger())).Start(ctx)
	return c.given(), err
}

// goThrough waits for the partitions of the consumer, makes a log while they are
// paused, and waits until all of it is handled. It returns the CPU time that the server
// used for that, 0 if it cannot be measured.
func (s *site) goThrough(ctx context.Context, n, events int) (server time.Duration, err error) {
	o, err := ops.New(s.db)
	if err != nil {
		return 0, err
	}
	if _, err := s.db.ExecContext(ctx, `CREATE TABLE projection (aggregate_id TEXT PRIMARY KEY, events BIGINT NOT NULL, last BIGINT NOT NULL)`); err != nil {
		return 0, err
	}
	if err := s.partitions(ctx, n, 0); err != nil {
		return 0, err
	}
	by := ops.By{Operator: "bench", Reason: "to begin at once"}
	if err := errors.Join(o.Pause(ctx, "spread", by), s.fillKeys(ctx, events)); err != nil {
		return 0, err
	}
	before, err := s.spent(ctx)
	known := err == nil
	if err := errors.Join(o.Resume(ctx, "spread", by), s.partitions(ctx, n, int64(events))); err != nil {
		return 0, err
	}
	after, err := s.spent(ctx)
	if !known || err != nil {
		return 0, nil
	}
	return after.minus(before).all, nil
}

// partitions waits until the site's consumer has n partitions that workers run, all
// of them at a position or above it.
func (s *site) partitions(ctx context.Context, n int, position int64) error {
	return eventually(ctx, fmt.Sprintf("%d partitions to be at position %d", n, position), func() (there bool, err error) {
		err = s.db.QueryRowContext(ctx, `
SELECT count(*) = $1::int AND coalesce(bool_and(EXISTS (SELECT FROM consumer_assignments AS a WHERE a.consumer_name = c.consumer_name)) AND min(last_position) >= $2::bigint, false)
FROM consumer_checkpoints AS c WHERE split_at IS NULL`, n, position).Scan(&there)
		return there, err
	})
}
