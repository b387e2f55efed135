package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// roleVariable in the environment makes the test program a worker process. Its
// value is a role as JSON.
const roleVariable = "WORKER_TEST_ROLE"

// role says what a worker process does.
type role struct {
	Name      string // also in pg_stat_activity
	URL       string // names it too
	Consumers int    // c0, c1, ...

	Heartbeat, HeartbeatTimeout, BatchTimeout time.Duration // 0: the default
}

// gate is the advisory lock that every handler takes, shared, after it has
// written. Who holds it exclusively stops all batches in their middle.
const gate = 4711

const terminating = "asked to stop"

// workerProcess is the main function of a worker process.
func workerProcess(text string) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, func() { fmt.Fprintln(os.Stderr, terminating) })()
	if err := runRole(ctx, text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runRole(ctx context.Context, text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	db, err := sql.Open("pgx", r.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxIdleConns(5 + r.Consumers)
	var consumers []consumer.Consumer
	for i := range r.Consumers {
		consumers = append(consumers, &signing{fmt.Sprint("c", i), r.Name})
	}
	opts := []worker.Option{
		worker.WithSlog(slog.New(slog.NewTextHandler(os.Stderr, nil))),
		worker.WithDispatcherInterval(20 * time.Millisecond), worker.WithBatchSize(5),
	}
	if r.Heartbeat > 0 {
		opts = append(opts, worker.WithHeartbeatInterval(r.Heartbeat), worker.WithHeartbeatTimeout(r.HeartbeatTimeout))
	}
	if r.BatchTimeout > 0 {
		opts = append(opts, worker.WithBatchTimeout(r.BatchTimeout))
	}
	return worker.New(db, newStore(), consumers, opts...).Start(ctx)
}

// signing is a consumer that writes down what it was given, with the name of
// the process.
type signing struct{ name, process string }

func (s *signing) Name() string { return s.name }

func (s *signing) Handle(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO signed (consumer, position, aggregate, version, process) VALUES ($1, $2, $3, $4, $5)`,
		s.name, e.GlobalPosition, e.AggregateID, e.AggregateVersion, s.process)
	if err == nil {
		_, err = tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock_shared($1::bigint)`, gate)
	}
	return err
}
