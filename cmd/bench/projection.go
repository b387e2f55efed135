package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

const projectionUpsert = `
INSERT INTO projection AS p (aggregate_id, events, last) VALUES ($1, 1, $2)
ON CONFLICT (aggregate_id) DO UPDATE SET events = p.events + 1, last = excluded.last`

// projecting is a walker that counts the events of each aggregate in a table.
type projecting struct{ walker }

func (p *projecting) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	if err := p.walker.Handle(ctx, tx, e); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, projectionUpsert, e.AggregateID, e.GlobalPosition)
	return err
}

// loop is what one would write without the library: it reads a batch, then
// applies it and moves a checkpoint in one transaction, all on one connection,
// where pgx prepares each statement once.
func (s *site) loop(ctx context.Context, c consumer.Consumer, size int) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ($1, 0)`, c.Name()); err != nil {
		return err
	}
	page := make([]store.PersistedEvent, 0, size)
	for after := int64(0); ; after = page[len(page)-1].GlobalPosition {
		if page, err = readWindow(ctx, conn, after, size, page[:0]); err != nil || len(page) == 0 {
			return err
		}
		if err := applyPage(ctx, conn, c, page); err != nil {
			return err
		}
	}
}

func applyPage(ctx context.Context, conn *sql.Conn, c consumer.Consumer, page []store.PersistedEvent) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if _, err := tx.ExecContext(ctx, `UPDATE consumer_checkpoints SET last_position = $2 WHERE consumer_name = $1`, c.Name(), page[len(page)-1].GlobalPosition); err != nil {
		return err
	}
	if bulk, ok := c.(consumer.BatchConsumer); ok {
		err = bulk.HandleBatch(ctx, tx, page)
	} else {
		for i := range page {
			if err = c.Handle(ctx, tx, page[i]); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}

// compare compares the library with the plain loop, in turns, on a log of its
// own.
func (l *lab) compare(ctx context.Context, events, batch int, least float64, make func(name string) (consumer.Consumer, *walker)) (rows []row, err error) {
	err = l.onSite(ctx, func(s *site) error {
		if err := s.fill(ctx, events); err != nil {
			return err
		}
		var plain, ours float64
		counted := 0
		for pass := range l.size.passes + 1 {
			c, w := make(fmt.Sprintf("plain_%d", pass))
			rate, _, err := s.project(ctx, c, w, func(ctx context.Context) error { return s.loop(ctx, c, batch) })
			if err != nil {
				return fmt.Errorf("the plain loop: %w", err)
			}
			plain = max(plain, rate)
			c, w = make(fmt.Sprintf("ours_%d", pass))
			rate, n, err := s.project(ctx, c, w, func(ctx context.Context) error {
				return s.work(ctx, 1, []consumer.Consumer{c}, []worker.Option{worker.WithBatchSize(batch)}, w.arrive)
			})
			if err != nil {
				return err
			}
			ours, counted = max(ours, rate), counted+n
		}
		name := fmt.Sprintf("batches of %s", grouped(batch))
		rows = []row{
			{part: "control: a plain loop, " + name, measured: grouped(plain) + " events/s"},
			against(name, ours, plain, "loop", least, counted),
		}
		return nil
	})
	return rows, err
}

// project walks over the log into an empty projection, and checks that.
func (s *site) project(ctx context.Context, c consumer.Consumer, w *walker, walk func(context.Context) error) (rate float64, counted int, err error) {
	if _, err := s.db.ExecContext(ctx, `
DROP TABLE IF EXISTS projection;
CREATE TABLE projection (aggregate_id TEXT PRIMARY KEY, events BIGINT NOT NULL, last BIGINT NOT NULL)`); err != nil {
		return 0, 0, err
	}
	if rate, counted, err = s.tour(ctx, c, w, walk); err != nil {
		return 0, 0, err
	}
	var wrong int
	err = s.db.QueryRowContext(ctx, `
SELECT count(*) FROM projection AS p
FULL JOIN (SELECT aggregate_id, count(*) AS events, max(global_position) AS last FROM events GROUP BY aggregate_id) AS e USING (aggregate_id)
WHERE (p.events, p.last) IS DISTINCT FROM (e.events, e.last)`).Scan(&wrong)
	if wrong > 0 {
		err = errors.Join(err, fmt.Errorf("%s: %d rows of the projection are wrong", w.name, wrong))
	}
	return rate, counted, err
}

// against is a rate compared with that of a control.
func against(part string, rate, control float64, of string, least float64, counted int) row {
	return compared(part, rate, rate/control, of, least, counted)
}

// compared is a rate with its ratio to that of a control.
func compared(part string, rate, ratio float64, of string, least float64, counted int) row {
	return row{
		part: part, measured: fmt.Sprintf("%s events/s, %.0f%% of the %s", grouped(rate), 100*ratio, of),
		goal: fmt.Sprintf(">= %.0f%%", 100*least), reached: ratio >= least, counted: counted, ratio: ratio, least: least,
	}
}
