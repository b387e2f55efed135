package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// limit ends what hangs.
const limit = time.Minute

// channel is the default of worker.WithNotifyChannel.
const channel = "worker_events"

// writersName is the application_name of the sessions of a site's own pool.
const writersName = "bench writers"

// lab is where scenarios run.
type lab struct {
	server *embedded.Server
	size   size
	past   *site  // with the history, once it was needed
	apart  string // the directory with the program whose consumers read apart, once it was needed
}

func (l *lab) close() error {
	var err error
	if l.apart != "" {
		err = os.RemoveAll(l.apart)
	}
	if l.past != nil {
		err = errors.Join(err, l.past.drop())
	}
	return err
}

// site is a database with all tables, for one scenario.
type site struct {
	lab  *lab
	name string
	url  string
	db   *sql.DB // for everything but the workers, which have pools of their own

	postmaster int    // its process id, 0 if the server is not ours
	wires      *wires // see what the workers say to the server; nil: no observer
}

// onSite runs a part of a scenario on a database of its own.
func (l *lab) onSite(ctx context.Context, part func(*site) error) error {
	s, err := l.newSite(ctx)
	if err != nil {
		return err
	}
	return errors.Join(part(s), s.drop())
}

func (l *lab) newSite(ctx context.Context) (*site, error) {
	name := "bench_" + strings.ToLower(rand.Text()[:12])
	if err := l.onServer(ctx, "CREATE DATABASE "+ident.Quote(name)); err != nil {
		return nil, fmt.Errorf("create a database: %w", err)
	}
	s := &site{lab: l, name: name, url: l.server.URL(name), postmaster: l.server.PID()}
	if err := s.open(); err != nil {
		return nil, err
	}
	if err := migrations.Apply(ctx, s.db, nil); err != nil {
		return nil, errors.Join(err, s.drop())
	}
	return s, nil
}

// open opens the pool of the site itself.
func (s *site) open() error {
	config, err := s.config()
	if err != nil {
		return err
	}
	config.RuntimeParams["application_name"] = writersName
	s.db = stdlib.OpenDB(*config)
	s.db.SetMaxIdleConns(32) // the writers keep theirs
	return nil
}

func (s *site) config() (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(s.url)
	if err != nil {
		return nil, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	return config, nil
}

func (s *site) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return errors.Join(s.db.Close(), s.lab.onServer(ctx, "DROP DATABASE "+ident.Quote(s.name)+" WITH (FORCE)"))
}

// onServer runs a statement that belongs to no site.
func (l *lab) onServer(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, l.server.URL(""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// notify and poll are the two dispatchers, with defaults otherwise.
func (s *site) notify() []worker.Option {
	return []worker.Option{
		worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify),
		worker.WithNotifyConnectionString(s.url),
	}
}

func (s *site) poll() []worker.Option { return nil }

// idleConns is what the README advises for the pool of a worker, as if all of
// its consumers were scoped.
func idleConns(consumers int) int { return 5 + 3*consumers }

// work runs workers with the same consumers while during runs, waits until
// they have stopped, and fails if one of them does.
func (s *site) work(ctx context.Context, workers int, consumers []consumer.Consumer, opts []worker.Option, during func(ctx context.Context) error) (err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	config, err := s.config()
	if err != nil {
		return err
	}
	if s.wires != nil {
		config.BuildFrontend = s.wires.frontend
	}
	var all []*worker.Worker
	ended := make(chan struct{})
	for range workers {
		db := stdlib.OpenDB(*config)
		db.SetMaxIdleConns(idleConns(units(consumers)))
		w := worker.New(db, storepostgres.NewStore(nil), consumers, opts...)
		all = append(all, w)
		go func() {
			if err := errors.Join(w.Start(context.WithoutCancel(ctx)), db.Close()); err != nil {
				fail(fmt.Errorf("a worker failed: %w", err))
			}
			ended <- struct{}{}
		}()
	}
	if err = until(ctx, "every worker to have consumers", func() bool { return allWork(all, len(consumers)) }); err == nil {
		err = during(ctx)
	}
	for _, w := range all {
		w.Stop()
	}
	for range all {
		<-ended
	}
	if failed := context.Cause(ctx); failed != nil && !errors.Is(err, failed) {
		err = errors.Join(err, failed)
	}
	return err
}

// units counts consumers, one in partitions as often as it is to be split.
func units(consumers []consumer.Consumer) (n int) {
	for _, c := range consumers {
		if p, ok := c.(consumer.Partitioned); ok {
			n += p.Partitions().Count - 1
		}
		n++
	}
	return n
}

// allWork reports that the consumers are all assigned, or parts of them, and that no
// worker of several is without.
func allWork(workers []*worker.Worker, consumers int) bool {
	assigned := map[string]bool{}
	for _, w := range workers {
		idle := true
		for _, c := range w.Status().Consumers {
			if c.Assigned {
				idle, assigned[c.Consumer] = false, true
			}
		}
		if idle {
			return false
		}
	}
	return len(assigned) == consumers
}

// until polls until done holds. What is measured is not measured by this
// clock.
func until(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited in vain for %s", what))
	defer cancel()
	for !done() {
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// eventually polls until done holds or fails.
func eventually(ctx context.Context, what string, done func() (bool, error)) (err error) {
	waited := until(ctx, what, func() (ok bool) {
		ok, err = done()
		return ok || err != nil
	})
	return errors.Join(waited, err)
}

// pause waits for d, or less if ctx ends: that is an error then.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
