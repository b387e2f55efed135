package main

import (
	"context"
	"database/sql"
	"log"
	"os/signal"
	"syscall"

	_ "github.com/lib/pq"
	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	db, err := sql.Open("postgres", "postgres://localhost:5432/myapp?sslmode=disable")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	eventStore := storepostgres.NewStore(storepostgres.DefaultStoreConfig())

	consumers := []consumer.Consumer{
		&OrderProjection{},
		&NotificationConsumer{},
	}

	w := worker.New(db, eventStore, consumers,
		worker.WithBatchSize(100),
	)

	if err := w.Start(ctx); err != nil {
		log.Fatal(err)
	}
}
