package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
)

// ourPeer is package jobs over database/sql, with pgx below.
type ourPeer struct {
	site   *site
	config config
	db     *sql.DB
	client *jobs.Client
}

func openOurs(ctx context.Context, s *site, c config) (peer, error) {
	config, err := pgx.ParseConfig(s.url())
	if err != nil {
		return nil, errors.New("the connection string cannot be parsed") // it may hold a password
	}
	p := &ourPeer{site: s, config: c, db: stdlib.OpenDB(*config)}
	p.db.SetMaxOpenConns(s.lab.options.conns)
	p.db.SetMaxIdleConns(s.lab.options.conns)
	p.client = jobs.NewClient(p.db)
	if err := migrations.ApplyJobs(ctx, p.db, nil); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *ourPeer) enqueue(ctx context.Context, first, n int) error {
	if n == 1 {
		_, err := p.client.Enqueue(ctx, nil, ourArgs{first})
		return err
	}
	all := make([]jobs.EnqueueParams, n)
	for i := range all {
		all[i].Args = ourArgs{first + i}
	}
	_, err := p.client.EnqueueMany(ctx, nil, all)
	return err
}

func (p *ourPeer) start(ctx context.Context) (stop func() error, err error) {
	w := jobs.NewWorker(p.db, p.handlers(), p.options()...)
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.WithoutCancel(ctx)) }()
	return func() error {
		w.Stop()
		select {
		case err := <-ended:
			return err
		case <-time.After(limit):
			return fmt.Errorf("the worker has not stopped for %s", limit)
		}
	}, nil
}

// options are the defaults, but for what the configuration says.
func (p *ourPeer) options() []jobs.Option {
	all := []jobs.Option{jobs.WithQueue(jobs.DefaultQueue, p.config.slots), jobs.WithPrefetch(p.config.prefetch)}
	if p.config.poll != 0 {
		return append(all, jobs.WithPollInterval(p.config.poll))
	}
	return append(all, jobs.WithNotifyConnectionString(p.site.url()))
}

func (p *ourPeer) handlers() *jobs.Handlers {
	ran := p.site.tally.ran
	h := jobs.NewHandlers()
	switch p.config.work {
	case noop:
		jobs.Register(h, func(_ context.Context, j *jobs.Job[ourArgs]) error {
			ran(j.Args.Num)
			return nil
		})
	case tx:
		jobs.RegisterTx(h, func(ctx context.Context, tx *sql.Tx, j *jobs.Job[ourArgs]) error {
			ran(j.Args.Num)
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (job) VALUES ($1)`, j.Args.Num)
			return err
		})
	case batchTx:
		jobs.RegisterBatchTx(h, func(ctx context.Context, tx *sql.Tx, all []*jobs.Job[ourArgs]) error {
			numbers := make([]int64, len(all))
			for i, j := range all {
				ran(j.Args.Num)
				numbers[i] = int64(j.Args.Num)
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (job) SELECT unnest($1::bigint[])`, numbers)
			return err
		})
	}
	return h
}

func (p *ourPeer) unfinished(ctx context.Context) (unfinished bool, err error) {
	err = p.site.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM jobs)`).Scan(&unfinished)
	return unfinished, err
}

func (p *ourPeer) completed(ctx context.Context) (completed, others int, err error) {
	err = p.site.db.QueryRow(ctx,
		`SELECT count(*) FILTER (WHERE once), count(*) FILTER (WHERE NOT once) + (SELECT count(*) FROM jobs)
		 FROM (SELECT state = 'completed' AND attempt = 1 AS once FROM jobs_history) AS j`).Scan(&completed, &others)
	return completed, others, err
}

func (p *ourPeer) close() error { return p.db.Close() }

type ourArgs struct {
	Num int `json:"num"`
}

func (ourArgs) Kind() string { return "bench" }
