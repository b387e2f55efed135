package consume

import (
	"database/sql"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/runtime"
	"github.com/pgfrontier/worker/observe"
)

// The report counts the connections closed between two checks, and not those closed since
// the pool was opened.
func TestPoolTooSmallThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(calm{})
		defer db.Close()
		db.SetMaxIdleConns(1)
		reported := make(chan observe.PoolTooSmall, 1)
		e := &env{connections: connections{db: pgdriver.Pool{DB: db}}, reports: reports{observers: runtime.NewObservers(observe.Worker{}, nil, []observe.Observer{observe.On(func(u observe.PoolTooSmall) { reported <- u })})}}
		const every = 10 * time.Second // two heartbeats
		ended := make(chan struct{})
		go func() { defer close(ended); watchPool(t.Context(), e, DefaultConfig().HeartbeatInterval) }()
		closes := func(n int) {
			t.Helper()
			conns := make([]*sql.Conn, n+1)
			for i := range conns {
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				conns[i] = conn
			}
			for _, conn := range conns {
				_ = conn.Close()
			}
			time.Sleep(every)
			synctest.Wait()
		}
		for range 10 {
			closes(60)
		}
		if len(reported) > 0 {
			t.Fatalf("a pool that closes 6 connections a second reported %+v", <-reported)
		}
		closes(101)
		select {
		case u := <-reported:
			if u.Closed != 101 || u.Within != every {
				t.Errorf("reported %+v, want 101 in %v", u, every)
			}
		default:
			t.Error("a pool that closes more than 10 connections a second reported nothing")
		}
		<-ended
	})
}
