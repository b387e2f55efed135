package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
)

// nativeProjecting is a projecting consumer that writes through pgx.
type nativeProjecting struct{ walker }

func (p *nativeProjecting) Handle(ctx context.Context, tx pgx.Tx, e store.PersistedEvent) error {
	if err := p.walker.Handle(ctx, nil, e); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, projectionUpsert, e.AggregateID, e.GlobalPosition)
	return err
}

// native compares a handler with a pgx.Tx with one that has a *sql.Tx, in many short turns, in batches
// of several sizes. The median of the ratios counts.
func native(ctx context.Context, l *lab) (rows []row, err error) {
	err = l.onSite(ctx, func(s *site) error {
		if err := s.fill(ctx, l.size.upserts/5); err != nil {
			return err
		}
		for _, batch := range []int{1, 10, worker.DefaultConfig().BatchSize} {
			var rates [2][]float64
			var ratios []float64
			counted := 0
			for pass := range 6 * l.size.passes {
				bySQL := &projecting{walker{name: fmt.Sprintf("sql_%d_%d", batch, pass)}}
				byPgx := &nativeProjecting{walker{name: fmt.Sprintf("pgx_%d_%d", batch, pass)}}
				for turn := range 2 {
					i := (pass + turn) % 2 // each goes first by turns
					w := []*walker{&bySQL.walker, &byPgx.walker}[i]
					c := []consumer.Consumer{bySQL, pgxtx.Consumer(byPgx)}[i]
					rate, n, err := s.project(ctx, c, w, func(ctx context.Context) error {
						return s.work(ctx, 1, []consumer.Consumer{c}, []worker.Option{worker.WithBatchSize(batch)}, w.arrive)
					})
					if err != nil {
						return err
					}
					rates[i], counted = append(rates[i], rate), counted+n
				}
				ratios = append(ratios, rates[1][pass]/rates[0][pass])
			}
			name := fmt.Sprintf("batches of %s", grouped(batch))
			rows = append(rows,
				row{part: "control: *sql.Tx, " + name, measured: grouped(median(rates[0])) + " events/s"},
				compared("pgx.Tx, "+name, median(rates[1]), median(ratios), "control", 0.95, counted))
		}
		return nil
	})
	return rows, err
}

// median sorts numbers and returns their median.
func median(all []float64) float64 {
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
