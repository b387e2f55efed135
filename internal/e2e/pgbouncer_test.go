package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// few makes PgBouncer share few sessions among many connections.
var few = map[string]string{"default_pool_size": "6"}

func leased(opts ...worker.Option) []worker.Option {
	return append([]worker.Option{worker.WithLeaderStrategy(worker.LeaderStrategyLease)}, opts...)
}

// shares counts the consumers that are assigned to a worker.
func shares(w *running) (n int) {
	for _, c := range w.Status().Consumers {
		if c.Assigned {
			n++
		}
	}
	return n
}

// appendWithGaps commits events of several aggregates and rolls others back,
// and returns the positions of those committed.
func appendWithGaps(t testing.TB, db *sql.DB, rounds int) (committed []int64) {
	t.Helper()
	for i := range rounds {
		tx := beginAppend(t, db, "Order", fmt.Sprint("lost ", i), 1+i%2)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		committed = append(committed, appendAt(t, db, fmt.Sprint("order ", i%3), 3)...)
	}
	return committed
}

// appendAt commits n events of an aggregate and returns their positions.
func appendAt(t testing.TB, db *sql.DB, id string, n int) []int64 {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	events := make([]store.Event, n)
	for i := range events {
		events[i] = event("Order", id)
	}
	result, err := newStore().Append(context.Background(), tx, store.Any(), events)
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	return result.GlobalPositions
}

// Two workers share the consumers, one stops and the other takes over, writers
// roll back, and all of them go through the proxy.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for name, open := range pgtest.ThroughBouncer {
		t.Run(name, func(t *testing.T) {
			if name != "pgx exec" && name != "lib/pq binary_parameters=yes" {
				tier.Long(t, "TestBehindPgBouncer, over two of them")
			}
			d := newLog(t)
			bounced := d.Bounced(t, few)
			writers := open(t, bounced)
			var consumers []consumer.Consumer
			for i := range 4 {
				consumers = append(consumers, &ledger{name: fmt.Sprint("c", i)})
			}
			first := start(t, open(t, bounced), consumers, leased(worker.WithBatchSize(5))...)
			second := start(t, open(t, bounced), consumers, leased(worker.WithBatchSize(5))...)
			await(t, "two consumers on each worker", func() bool { return shares(first) == 2 && shares(second) == 2 })
			want := appendWithGaps(t, writers, 20)
			for _, c := range consumers {
				awaitHandled(t, d.DB, c.Name(), want...)
			}
			first.Stop()
			if err := first.result(t); err != nil {
				t.Fatal(err)
			}
			await(t, "the second worker to run all four", func() bool { return shares(second) == 4 })
			want = append(want, appendWithGaps(t, writers, 20)...)
			for _, c := range consumers {
				awaitHandled(t, d.DB, c.Name(), want...)
			}
		})
	}
}

// What a proxy breaks is refused at the start, with the remedy, however few or
// many sessions it has.
func TestPgBouncerWithStatementsItBreaks(t *testing.T) {
	t.Parallel()
	for name, open := range pgtest.BrokenByBouncer {
		for _, size := range []string{"1", "20"} {
			t.Run(name+" on "+size, func(t *testing.T) {
				d := newLog(t)
				bounced := d.Bounced(t, map[string]string{"default_pool_size": size})
				w := start(t, open(t, bounced), []consumer.Consumer{&ledger{name: "c"}}, leased()...)
				if err := w.result(t); !errors.Is(err, worker.ErrPreparedStatements) {
					t.Errorf("Start returned %v, want ErrPreparedStatements", err)
				}
				if name == "lib/pq" && size == "1" {
					expectStart(t, "jobs", starts["jobs"], open(t, bounced), "session locks")
					expectStart(t, "jobs/table", starts["jobs/table"], open(t, bounced), "prepared statements")
					expectStart(t, "jobs/schedule", starts["jobs/schedule"], open(t, bounced), "prepared statements")
				}
			})
		}
	}
}

// Session locks protect nothing there.
func TestPgBouncerWithAdvisoryLocks(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]pgtest.Opener{"exec": pgtest.ThroughBouncer["pgx exec"], "cache_statement": pgtest.BrokenByBouncer["pgx cache_statement"], "lib/pq": pgtest.BrokenByBouncer["lib/pq"]} {
		for _, settings := range []map[string]string{{"default_pool_size": "1"}, few, {"server_round_robin": "1"}} {
			t.Run(fmt.Sprint(name, settings), func(t *testing.T) {
				d := newLog(t)
				w := start(t, open(t, d.Bounced(t, settings)), []consumer.Consumer{&ledger{name: "c"}})
				if err := w.result(t); !errors.Is(err, worker.ErrTransactionPooling) {
					t.Errorf("Start returned %v, want worker.ErrTransactionPooling", err)
				}
			})
		}
	}
}

// With session pooling a connection keeps its session, and everything works.
func TestPgBouncerWithSessionPooling(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	bounced := d.Bounced(t, map[string]string{"pool_mode": "session"})
	db := bounced.OpenMode(t, pgx.QueryExecModeCacheStatement)
	start(t, db, []consumer.Consumer{&ledger{name: "c"}})
	awaitHandled(t, d.DB, "c", appendWithGaps(t, db, 5)...)
}

// LISTEN has a connection of its own that leads straight to the server.
func TestPgBouncerWithNotify(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	db := d.Bounced(t, few).DB
	start(t, db, []consumer.Consumer{&ledger{name: "c"}}, leased(
		worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify), worker.WithNotifyConnectionString(d.URL))...)
	await(t, "a session that listens", func() bool {
		var listening bool
		err := d.DB.QueryRow(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen %')`).Scan(&listening)
		return err == nil && listening
	})
	awaitHandled(t, d.DB, "c", appendWithGaps(t, db, 5)...)
}
