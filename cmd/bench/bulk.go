package main

import (
	"context"
	"database/sql"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// bulk measures a projection that writes in bulk.
func bulk(ctx context.Context, l *lab) (rows []row, err error) {
	for _, batch := range []int{worker.DefaultConfig().BatchSize, 1000} {
		more, err := l.compare(ctx, l.size.bulk, batch, 0.70, func(name string) (consumer.Consumer, *walker) {
			p := &projectingInBulk{projecting{walker{name: name}}}
			return p, &p.walker
		})
		if err != nil {
			return rows, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// projectingInBulk does the same with one statement a batch.
type projectingInBulk struct{ projecting }

func (p *projectingInBulk) HandleBatch(ctx context.Context, tx *sql.Tx, events []store.PersistedEvent) error {
	ids, positions := make([]string, len(events)), make([]int64, len(events))
	for i, e := range events {
		if err := p.walker.Handle(ctx, tx, e); err != nil {
			return err
		}
		ids[i], positions[i] = e.AggregateID, e.GlobalPosition
	}
	_, err := tx.ExecContext(ctx, `
INSERT INTO projection AS p (aggregate_id, events, last)
SELECT id, count(*), max(position) FROM unnest($1::text[], $2::bigint[]) AS e (id, position) GROUP BY id
ON CONFLICT (aggregate_id) DO UPDATE SET events = p.events + excluded.events, last = excluded.last`, ids, positions)
	return err
}
