package worker

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// informed counts what a logger is told.
type informed struct {
	store.NoOpLogger
	times *atomic.Int64
}

func (i informed) Info(context.Context, string, ...any) { i.times.Add(1) }

// A pool that closes connections all the time is told of, once; one that keeps
// them is not.
func TestPoolThatKeepsFewConnectionsIsTold(t *testing.T) {
	for kept, want := range map[int]int64{1: 1, 4: 0} {
		d := pgtest.New(t)
		d.DB.SetMaxIdleConns(kept)
		told := informed{times: new(atomic.Int64)}
		w := New(d.DB, storepostgres.NewStore(nil), []consumer.Consumer{steppedConsumer{"c", nil, new(atomic.Bool)}}, WithLogger(told))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.watchPool(ctx, 100*time.Millisecond, 1)
		}()
		for enough := time.Now().Add(time.Second); time.Now().Before(enough); {
			useAtOnce(t, d.DB, 4)
		}
		for deadline := time.Now().Add(30 * time.Second); told.times.Load() < want && time.Now().Before(deadline); {
			useAtOnce(t, d.DB, 4)
		}
		cancel()
		<-ended
		if got := told.times.Load(); got != want {
			t.Errorf("of a pool that keeps %d connections, of which 4 are used, it is told %d times, want %d", kept, got, want)
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
