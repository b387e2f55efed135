package runtime

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// The heartbeats and the pool are on two servers if both were read since Forget and the latest
// results differ. Idle connections are closed after that, and after the heartbeats have moved.
func TestFailover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Failover{CloseFor: time.Hour}
		said := map[string]string{}
		last, differed, closes := "", false, false
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			at := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "start of the server")
			var differ bool
			switch who := rapid.SampledFrom([]string{"heartbeat", "pool", "failure"}).Draw(t, "who"); who {
			case "heartbeat":
				said[who], differ = at, f.Beat(at)
				closes = closes || last != "" && last != at
				last = at
			case "pool":
				said[who], differ = at, f.found(at)
			default:
				f.Forget()
				said, differed = map[string]string{}, false
			}
			want := len(said) == 2 && said["heartbeat"] != said["pool"]
			differed, closes = differed || want, closes || want
			if differ != want || f.HasDiffered() != differed || f.closes() != closes {
				t.Fatalf("differ: %t, %t, closes: %t; want %t, %t, %t; said was %v", differ, f.HasDiffered(), f.closes(), want, differed, closes, said)
			}
		}
	})
}

// Watch closes the idle connections while the pool leads to another server than the heartbeats,
// and no connection before.
func TestFailoverClosesIdleConnections(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).DB
	db.SetMaxIdleConns(2)
	conns := make([]*sql.Conn, 2)
	for i := range conns {
		var err error
		if conns[i], err = db.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	f := Failover{CloseFor: time.Hour}
	watch := func() (reported error) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		f.Watch(ctx, NewPool(pgdriver.NewPool(db), errClosed, nil), time.Millisecond, time.Minute, func(err error) {
			reported = err
			stop()
		})
		return reported
	}
	if err := watch(); err != nil || db.Stats().Idle != 2 {
		t.Fatalf("of 2 idle connections %d are left, the error is %v", db.Stats().Idle, err)
	}
	f.Beat("1")
	if err := watch(); !errors.Is(err, ErrFailover) || db.Stats().Idle != 0 {
		t.Errorf("of 2 idle connections %d are left, the error is %v", db.Stats().Idle, err)
	}
}
