// Command existing-log runs a consumer over a table that an application has had for long.
// Its rows are the events. One transaction commits late, and its row is not missed.
//
//	go run ./examples/existing-log
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/examples/internal/database"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := database.With(ctx, run); err != nil {
		log.Fatal(err)
	}
}

// Payments reads the table payments as a log. Its rows are inserted, with an id that the
// sequence gives, and never changed.
type Payments struct{}

// ReadEvents names the table with its schema: a handler may change the search path.
func (Payments) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT id, account, json_build_object('cents', cents)::text, paid_at FROM public.payments
		WHERE id > $1::bigint ORDER BY id LIMIT $2::bigint`, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var events []store.PersistedEvent
	for rows.Next() {
		e := store.PersistedEvent{AggregateType: "Account", EventType: "Paid", EventVersion: 1}
		if err := rows.Scan(&e.GlobalPosition, &e.AggregateID, &e.Payload, &e.CreatedAt); err != nil {
			return nil, err
		}
		e.AggregateVersion = e.GlobalPosition                                                       // ascends for each account
		e.EventID = uuid.NewSHA1(uuid.NameSpaceURL, fmt.Append(nil, "payments/", e.GlobalPosition)) // the same each time
		events = append(events, e)
	}
	return events, rows.Err()
}

// GetLatestGlobalPosition returns the highest id.
func (Payments) GetLatestGlobalPosition(ctx context.Context, q store.Querier) (id int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(id), 0) FROM public.payments`).Scan(&id)
	return id, err
}

// PositionColumn names the column whose default draws from the sequence. So the worker finds
// out which transactions may still insert an id that is missing.
func (Payments) PositionColumn() (table, column string) { return "public.payments", "id" }

// Balances is a consumer as any other.
type Balances struct{}

func (Balances) Name() string { return "balances_v1" }

func (Balances) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	fmt.Printf("payment %d of %s: %s\n", e.GlobalPosition, e.AggregateID, e.Payload)
	_, err := tx.ExecContext(ctx, `
		INSERT INTO balances (account, cents) VALUES ($1::text, ($2::jsonb->>'cents')::int)
		ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`, e.AggregateID, string(e.Payload))
	return err
}

const tables = `
CREATE TABLE payments (id BIGSERIAL PRIMARY KEY, account TEXT NOT NULL, cents INT NOT NULL, paid_at TIMESTAMPTZ NOT NULL DEFAULT now());
CREATE TABLE balances (account TEXT PRIMARY KEY, cents INT NOT NULL)`

const pay = `INSERT INTO payments (account, cents) VALUES ($1::text, $2::int) RETURNING id`

func run(ctx context.Context, db *sql.DB) error {
	if err := migrations.Apply(ctx, db, nil); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return err
	}
	w := worker.New(db, Payments{}, []consumer.Consumer{Balances{}})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- w.Start(ctx) }()
	go func() { ended <- story(ctx, db, w) }()
	err := <-ended // whichever ends first ends the other
	stop()
	return errors.Join(err, <-ended)
}

// story is what the application does. A program that remembers the highest id that it has
// read, and asks for those above, would never see the payment of bob.
func story(ctx context.Context, db *sql.DB, w *worker.Worker) error {
	var ann, bob, cid int64
	if err := db.QueryRowContext(ctx, pay, "ann", 500).Scan(&ann); err != nil {
		return err
	}
	if err := w.WaitFor(ctx, Balances{}.Name(), ann); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err := tx.QueryRowContext(ctx, pay, "bob", 1200).Scan(&bob); err != nil {
		return err
	}
	fmt.Printf("payment %d of bob is not committed yet\n", bob)
	if err := db.QueryRowContext(ctx, pay, "cid", 300).Scan(&cid); err != nil {
		return err
	}
	fmt.Printf("payment %d of cid is committed\n", cid)
	select {
	case <-time.After(time.Second): // bob's transaction takes its time
	case <-ctx.Done():
		return ctx.Err()
	}
	fmt.Printf("payment %d of bob is committed\n", bob)
	if err := tx.Commit(); err != nil {
		return err
	}
	return w.WaitFor(ctx, Balances{}.Name(), cid)
}
