package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// idle counts what workers do while there is nothing to do. They are measured
// at the same time, each on a database of its own.
func idle(ctx context.Context, l *lab) ([]row, error) {
	parts := []struct {
		dispatcher
		consumers int
		most      float64
	}{{poll, 1, 7}, {poll, 50, 7}, {notify, 1, 3}, {notify, 50, 3}}
	rows, errs := make([]row, len(parts)), make([]error, len(parts))
	var all sync.WaitGroup
	for i, p := range parts {
		all.Go(func() {
			var sent, counted float64
			var checked int
			errs[i] = l.onSite(ctx, func(s *site) (err error) {
				sent, counted, checked, err = l.rest(ctx, s, p.dispatcher, p.consumers)
				return err
			})
			rows[i] = row{
				part:     p.name + ", consumers: " + strconv.Itoa(p.consumers),
				measured: fmt.Sprintf("%.1f statements/s (%.1f transactions/s)", sent, counted),
				goal:     fmt.Sprintf("<= %.0f", p.most), reached: sent <= p.most, counted: checked,
			}
		})
	}
	all.Wait()
	return rows, errors.Join(errs...)
}

// rest returns how many statements a second the worker sent and how many
// transactions the server counted, and checks that it was no dead worker.
func (l *lab) rest(ctx context.Context, s *site, d dispatcher, consumers int) (sent, transactions float64, checked int, err error) {
	s.wires = &wires{}
	j, all := newJournal(s, d.channel), newRecorders(consumers)
	err = s.work(ctx, 1, asConsumers(all), d.options(s), func(ctx context.Context) error {
		if err := warmUp(ctx, j, all...); err != nil {
			return err
		}
		if err := pause(ctx, l.size.settle); err != nil {
			return err
		}
		before, err := l.transactions(ctx, s.name)
		if err != nil {
			return err
		}
		began, statements := time.Now(), s.wires.statements.Load()
		if err := pause(ctx, l.size.idle); err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		sent = float64(s.wires.statements.Load()-statements) / took
		after, err := l.transactions(ctx, s.name)
		if err != nil {
			return err
		}
		transactions = float64(after-before) / took
		if err := j.append(ctx, true); err != nil {
			return err
		}
		return j.settle(ctx, all...)
	})
	if err == nil {
		checked, err = j.audit(ctx, all...)
	}
	return sent, transactions, checked, err
}

// transactions returns what the server counts for a database. It is asked
// from another one, not to count the question.
func (l *lab) transactions(ctx context.Context, database string) (n int64, err error) {
	conn, err := pgx.Connect(ctx, l.server.URL(""))
	if err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1::text`, database).Scan(&n)
	return n, errors.Join(err, conn.Close(ctx))
}
