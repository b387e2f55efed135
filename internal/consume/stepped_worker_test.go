package consume

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// steppedWorker is a worker without coordination. The script assigns its consumers, and
// runs its frontier and its loops.
type steppedWorker struct {
	*Worker
	name  string
	shown *frontier.Value // the latest
	loops []*loop
	// blockers are the transactions that became stale in the latest statement of the
	// frontier.
	blockers []string

	mu    sync.Mutex
	lines []*line // all lines
}

func (w *steppedWorker) loop(consumer string) *loop {
	for _, l := range w.loops {
		if l.unit() == consumer {
			return l
		}
	}
	return nil
}

// barestLog implements only the methods that every log must have.
type barestLog struct{ store.Log }

// openPool opens a pool of database/sql, or one of pgx that lends its connections.
func (s *stage) openPool(cfg *pgx.ConnConfig, native bool) *sql.DB {
	if !native {
		db := stdlib.OpenDB(*cfg)
		db.SetMaxIdleConns(keptConns)
		return db
	}
	config, err := pgxpool.ParseConfig("")
	s.must(err)
	config.ConnConfig, config.MaxConns = cfg, 4*keptConns
	// Pools of pgx measure idle time by the machine's clock, not by the script's.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	config.MaxConnLifetime, config.HealthCheckPeriod = 1000*time.Hour, 1000*time.Hour
	pool, err := pgxpool.NewWithConfig(s.ctx, config)
	s.must(err)
	s.t.Cleanup(pool.Close)
	return pgxtx.DB(pool)
}

// newWorker makes a worker over a pool of database/sql, or with native over one of pgx.
func (s *stage) newWorker(name string, native bool) *steppedWorker {
	cfg := s.config(name, "20s") // a wait of 20 s for a lock counts as endless
	sw := &steppedWorker{name: name}
	cfg.Tracer = gate{s, sw}
	s.lines(sw, cfg)
	db := s.openPool(cfg, native)
	s.t.Cleanup(func() { db.Close() })
	var log store.Log = steppedLog{storepostgres.NewStore(nil)}
	if !s.script.named {
		log = barestLog{log}
	}
	consumers := []consumer.Consumer{steppedConsumer{"all", nil, new(atomic.Bool)}, steppedConsumer{"some", []string{"A"}, new(atomic.Bool)}}
	w := newWorker(db, log, consumers,
		func(c *Config) { c.Observers = append(c.Observers, s.observer(sw)) },
		func(c *Config) { c.LeaderStrategy = LeaderStrategyLease }, // so that no worker ends the batch of a dead worker
		func(c *Config) { c.BatchSize = s.script.batchSize }, func(c *Config) { c.BatchTimeout = 24 * time.Hour }, func(c *Config) { c.MaxOpenRanges = s.script.maxOpen },
		func(c *Config) { c.GapPolicy = s.script.policy }, func(c *Config) { c.StaleGapThreshold = s.script.stale }, func(c *Config) { c.StaleGapHarborLag = s.script.harborLag })
	s.must(w.prepare(s.ctx))
	// A script may delay any statement. The polls meanwhile are switched off, because their
	// number would depend on chance.
	w.limits = limits{quick: time.Hour, read: time.Hour, lock: 1000 * time.Hour, leave: usualLimits.leave, share: 1}
	w.pooling.PIDKnown = false
	sw.Worker = w
	s.t.Cleanup(w.frontier.Close)
	for _, u := range w.units {
		ahead := &readers{stops: make(chan *stop)}
		if len(sw.loops) > 0 && !s.script.named {
			ahead = sw.loops[0].ahead // the log filters nothing, so the loops share the read-ahead
		}
		sw.loops = append(sw.loops, &loop{
			c:      newLoop(&w.shared, u),
			worker: name,
			main:   &thread{stops: make(chan *stop), ahead: ahead},
			ahead:  ahead,
		})
	}
	s.t.Cleanup(func() {
		for _, l := range sw.loops {
			l.c.reader.Close()
		}
	})
	return sw
}

// stepFrontier runs the next statement of a frontier, due or not, sometimes after a
// notification.
func (s *stage) stepFrontier(who, what int) {
	w := s.workers[who%len(s.workers)]
	if what%2 == 1 {
		w.frontier.Wake()
	}
	err := w.frontier.Step(s.ctx)
	slices.Sort(w.blockers)
	for _, b := range w.blockers {
		s.record(w.name, "", history.FrontierBlocked, history.Blocker{Holder: b})
	}
	w.blockers = nil
	v := w.frontier.Value()
	switch setup := (*frontier.SetupError)(nil); {
	case errors.As(err, &setup):
		s.wrong("%s: the frontier refuses the log: %v", w.name, err)
	case err != nil && s.faults == 0:
		s.wrong("%s: frontier, without any fault: %v", w.name, err)
	case err != nil:
		s.record(w.name, "", sessionEnded, errorText(err))
	case v != w.shown:
		w.shown = v
		s.published = append(s.published, v)
		s.record(w.name, "", published, s.viewOf(v))
		if len(v.Doubts) > 0 {
			s.saw("doubts")
		}
	}
}

// pollFrontier makes a frontier poll once.
func (s *stage) pollFrontier(who, _ int) {
	s.pass(0, 0)
	for range 3 {
		s.stepFrontier(who, 0)
	}
}

// goPast makes the first writer stale. Events are committed above its own, and a frontier
// polls until the writer counts as stale. Then the worker's consumers pass it, or only the
// first of them.
func (s *stage) goPast(who, what int) {
	s.append(0, what)
	s.append(1, what+1)
	if w := s.writer(1); w.tx != nil {
		s.endWriter(w, true)
	}
	for range 5 {
		s.pollFrontier(who, 0)
	}
	if what%3 == 0 {
		s.handOnMeanwhile(who, what/3)
	}
	w := s.workers[who%len(s.workers)]
	for i, l := range w.loops {
		if s.owner[l.unit()] == &w.shared && (i == 0 || what%4 != 1) {
			s.advance(l, true)
			s.finishStep(l)
		}
	}
}

// pass lets time pass. It must not be called while a goroutine waits for the server.
func (s *stage) pass(int, int) {
	for _, l := range s.loops() {
		if l.waits != 0 {
			return
		}
	}
	time.Sleep(quantum)
}

// watch checks whether another worker or an operator has moved the progress of consumers,
// as every worker does regularly.
func (s *stage) watch(who, _ int) {
	w := s.workers[who%len(s.workers)]
	if _, err := w.progressWatch.signalMoved(s.ctx, w.units, []string{"all", "some"}); err != nil && s.faults == 0 {
		s.wrong("%s: watch, without any fault: %v", w.name, err)
	}
	for _, l := range w.loops {
		if l.idle() {
			select {
			case <-l.c.unit.reload.c:
				l.c.forget()
				s.record(l.worker, l.unit(), nudged, nil)
			default:
			}
		}
	}
}
