package worker_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store/consumer"
)

// A pool that closes connections all the time is told of, once; one that keeps
// them is not.
func TestPoolThatKeepsFewConnectionsIsTold(t *testing.T) {
	for kept, want := range map[int]int{1: 1, 20: 0} {
		d := newLog(t)
		d.DB.SetMaxIdleConns(kept)
		var log lines
		w := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, worker.WithLogger(&log))
		said := func() int { return len(log.with("db.SetMaxIdleConns")) }
		await(t, "the worker to run", func() bool { return w.Status().State == worker.StateRunning })
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
