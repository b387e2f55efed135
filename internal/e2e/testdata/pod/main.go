// Command pod is a worker process like those of a deployment. A test builds it
// in the sources of an older commit, so it uses only what both have.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// signing is a consumer that writes down what it was given.
type signing struct{ name, process string }

func (s signing) Name() string { return s.name }

func (s signing) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO signed (consumer, position, aggregate, version, process) VALUES ($1, $2, $3, $4, $5)`,
		s.name, e.GlobalPosition, e.AggregateID, e.AggregateVersion, s.process)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	var role struct {
		Name, URL                   string
		Consumers                   int
		Heartbeat, HeartbeatTimeout time.Duration
	}
	if err := json.Unmarshal([]byte(os.Getenv("WORKER_TEST_ROLE")), &role); err != nil {
		return err
	}
	db, err := sql.Open("pgx", role.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	config := migrations.DefaultConfig()
	if err := migrations.Apply(ctx, db, &config); err != nil {
		return err
	}
	var consumers []consumer.Consumer
	for i := range role.Consumers {
		consumers = append(consumers, signing{fmt.Sprint("c", i), role.Name})
	}
	return worker.New(db, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), consumers,
		worker.WithLogger(store.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))),
		worker.WithDispatcherInterval(20*time.Millisecond), worker.WithBatchSize(5),
		worker.WithHeartbeatInterval(role.Heartbeat), worker.WithHeartbeatTimeout(role.HeartbeatTimeout)).Start(ctx)
}
