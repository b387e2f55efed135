package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// A pool that closes connections all the time is told of, once; one that keeps
// them is not.
func TestPoolThatKeepsFewConnectionsIsTold(t *testing.T) {
	t.Parallel()
	for kept, want := range map[int]int{1: 1, 20: 0} {
		d := newLog(t)
		d.DB.SetMaxIdleConns(kept)
		var log lines
		w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithLogger(&log))
		said := func() int { return len(log.with("db.SetMaxIdleConns")) }
		await(t, "the worker to run", func() bool { return w.Status().State == observe.StateRunning })
		for enough := time.Now().Add(time.Second); time.Now().Before(enough); {
			useAtOnce(t, d.DB, 8)
		}
		await(t, "the log to tell of the pool, if it has to", func() bool {
			useAtOnce(t, d.DB, 8)
			return said() >= want
		})
		w.Stop()
		if err := w.result(t); err != nil {
			t.Fatal(err)
		}
		if said() != want {
			t.Errorf("of a pool that keeps %d connections, of which 8 are used at once, it is told %d times, want %d", kept, said(), want)
		}
	}
}

// useAtOnce takes n connections and gives them back.
func useAtOnce(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	var conns []*sql.Conn
	for range n {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// While handlers keep all connections that the consumers may have, heartbeats
// go on, also after the coordination has lost its own.
func TestHeartbeatsDoNotWaitForHandlers(t *testing.T) {
	t.Parallel()
	for _, strategy := range []worker.LeaderStrategy{worker.LeaderStrategyAdvisory, worker.LeaderStrategyLease} {
		t.Run(string(strategy), func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 1)
			db := limited(t, d.URL, 4)
			var handling, stopped, done atomic.Int32
			finish := make(chan struct{})
			var consumers []consumer.Consumer
			for i := range 8 {
				consumers = append(consumers, &handler{fmt.Sprint("c", i), func(context.Context, *sql.Tx) error {
					handling.Add(1)
					<-finish
					return nil
				}})
			}
			w := start(t, db, consumers, worker.WithLeaderStrategy(strategy), worker.WithHeartbeatTimeout(30*time.Second), worker.WithBatchTimeout(time.Hour), worker.WithObserver(observe.On(func(observe.ConsumerStopped) { stopped.Add(1) }),
				observe.On(func(b observe.BatchDone) {
					if b.Err == nil {
						done.Add(1)
					}
				})))
			defer close(finish)
			heartbeats := func(when string, n int) {
				t.Helper()
				var last time.Time
				await(t, fmt.Sprintf("%d heartbeats %s", n, when), func() bool {
					if s := w.Status(); s.LastHeartbeat.After(last) && s.CoordinationError == nil {
						last = s.LastHeartbeat
						n--
					}
					return n < 0
				})
				if n := stopped.Load(); n > 0 {
					t.Errorf("%s, consumers were stopped %d times", when, n)
				}
			}
			await(t, "a handler", func() bool { return handling.Load() > 0 })
			heartbeats("beside a handler that keeps its connection", 15)
			await(t, "the end of the coordination's session", func() (ended bool) {
				err := d.DB.QueryRow(`
SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ 'worker_nodes|worker_leader_election'`).Scan(&ended)
				return err == nil && ended
			})
			heartbeats("after a loss", 15)
			for range consumers {
				finish <- struct{}{}
			}
			await(t, "all batches", func() bool { return int(done.Load()) == len(consumers) })
		})
	}
}

// limited opens a pool of at most n connections.
func limited(t *testing.T, url string, n int) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	db.SetMaxOpenConns(n)
	return db
}
