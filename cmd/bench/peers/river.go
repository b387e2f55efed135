package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverPeer is River with its driver for pgx.
type riverPeer struct {
	site   *site
	config config
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func openRiver(ctx context.Context, s *site, c config) (peer, error) {
	p := &riverPeer{site: s, config: c}
	config, err := pgxpool.ParseConfig(s.url())
	if err != nil {
		return nil, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	config.MaxConns = int32(s.lab.options.conns)
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(p.pool)
	if err = p.migrate(ctx, driver); err == nil {
		p.client, err = river.NewClient(driver, p.options())
	}
	if err != nil {
		p.pool.Close()
		return nil, err
	}
	return p, nil
}

func (p *riverPeer) migrate(ctx context.Context, driver *riverpgxv5.Driver) error {
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	return err
}

// options are River's defaults, or what its own benchmark sets: "river bench"
// fetches each 2 ms at most, and each 20 ms at least.
func (p *riverPeer) options() *river.Config {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{site: p.site, pool: p.pool, tx: p.config.work != noop})
	c := &river.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: p.config.slots}},
		Workers: workers,
	}
	if p.config.tuned {
		c.FetchCooldown, c.FetchPollInterval = 2*time.Millisecond, 20*time.Millisecond
	}
	if p.config.poll != 0 {
		c.PollOnly, c.FetchPollInterval = true, p.config.poll
	}
	return c
}

func (p *riverPeer) enqueue(ctx context.Context, first, n int) error {
	if n == 1 {
		_, err := p.client.Insert(ctx, riverArgs{first}, nil)
		return err
	}
	all := make([]river.InsertManyParams, n)
	for i := range all {
		all[i].Args = riverArgs{first + i}
	}
	if p.config.fast {
		_, err := p.client.InsertManyFast(ctx, all)
		return err
	}
	_, err := p.client.InsertMany(ctx, all)
	return err
}

func (p *riverPeer) start(ctx context.Context) (stop func() error, err error) {
	if err := p.client.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		return p.client.Stop(ctx)
	}, nil
}

func (p *riverPeer) unfinished(ctx context.Context) (unfinished bool, err error) {
	err = p.site.db.QueryRow(ctx,
		`SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled'))`).Scan(&unfinished)
	return unfinished, err
}

func (p *riverPeer) completed(ctx context.Context) (completed, others int, err error) {
	err = p.site.db.QueryRow(ctx,
		`SELECT count(*) FILTER (WHERE once), count(*) FILTER (WHERE NOT once)
		 FROM (SELECT state = 'completed' AND attempt = 1 AS once FROM river_job) AS j`).Scan(&completed, &others)
	return completed, others, err
}

func (p *riverPeer) close() error {
	p.pool.Close()
	return nil
}

type riverArgs struct {
	Num int `json:"num"`
}

func (riverArgs) Kind() string { return "bench" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	site *site
	pool *pgxpool.Pool
	tx   bool
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	w.site.tally.ran(job.Args.Num)
	if !w.tx {
		return nil
	}
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `INSERT INTO effects (job) VALUES ($1)`, job.Args.Num); err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
