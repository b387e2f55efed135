package pgxtx_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"github.com/pgfrontier/worker/store/pgxtx"
	"github.com/pgfrontier/worker/store/postgres"
)

// Queries is what sqlc generates with sql_package: pgx/v5, shortened.
type Queries struct{ db DBTX }

type DBTX interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

func NewQueries(db DBTX) *Queries { return &Queries{db} }

func (q *Queries) CountOrder(ctx context.Context, customer string) error {
	_, err := q.db.Exec(ctx, `INSERT INTO orders AS o VALUES ($1, 1) ON CONFLICT (customer) DO UPDATE SET n = o.n + 1`, customer)
	return err
}

func (q *Queries) Orders(ctx context.Context, customer string) (n int, err error) {
	err = q.db.QueryRow(ctx, `SELECT n FROM orders WHERE customer = $1`, customer).Scan(&n)
	return n, err
}

// Orders counts the orders of each customer.
type Orders struct{}

func (Orders) Name() string { return "orders_v1" }

func (Orders) Handle(ctx context.Context, tx pgx.Tx, event store.PersistedEvent) error {
	return NewQueries(tx).CountOrder(ctx, event.AggregateID)
}

// An application on a pgxpool.Pool appends events, handles them with code of sqlc and reads what it has
// written, without database/sql.
func ExampleDB() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	t, drop := pgtest.Example()
	defer drop()
	cfg, err := pgxpool.ParseConfig(pgtest.New(t).URL)
	if err != nil {
		log.Panic(err)
	}
	cfg.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE orders (customer text PRIMARY KEY, n int NOT NULL)`); err != nil {
		log.Panic(err)
	}

	db := pgxtx.DB(pool)
	defer db.Close()
	events := postgres.NewStore(postgres.DefaultStoreConfig())
	w := worker.New(db, events, []consumer.Consumer{pgxtx.Consumer(Orders{})})
	ended := make(chan error)
	go func() { ended <- w.Start(ctx) }()

	var last int64
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return pgxtx.Do(tx, func(tx *pgxtx.Tx) error {
			placed := store.Event{AggregateType: "Customer", AggregateID: "ann", EventType: "OrderPlaced", EventID: uuid.New(), Payload: []byte("{}")}
			result, err := events.Append(ctx, tx, store.Any(), []store.Event{placed})
			if err == nil {
				last = result.GlobalPositions[0]
			}
			return err
		})
	})
	if err != nil {
		log.Panic(err)
	}
	if err := w.WaitFor(ctx, "orders_v1", last); err != nil {
		log.Panic(err)
	}
	n, err := NewQueries(pool).Orders(ctx, "ann")
	fmt.Println(n, err)
	w.Stop()
	fmt.Println(<-ended)
	// Output:
	// 1 <nil>
	// <nil>
}
