package runtime

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/observe"
)

var errClosed = errors.New("the pool was closed")

// A sweep closes the dead idle connections, all at the same time, and keeps the others.
func TestSweep(t *testing.T) {
	t.Parallel()
	db, h := pgtest.Empty(t).OpenHole(t)
	const n = 20
	db.SetMaxIdleConns(n)
	fill := func() {
		conns := make([]*sql.Conn, n)
		for i := range conns {
			var err error
			if conns[i], err = db.Conn(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	fill()
	if idle, alive := closeDead(t.Context(), db); idle != n || alive != n || db.Stats().Idle != n {
		t.Errorf("of %d living connections %d were idle and %d alive, %d are left", n, idle, alive, db.Stats().Idle)
	}
	h.SwallowAll()
	if idle, alive := closeDead(t.Context(), db); idle != n || alive != 0 || db.Stats().Idle != 0 {
		t.Errorf("of %d dead connections %d were idle and %d alive, %d are left", n, idle, alive, db.Stats().Idle)
	}
	fill()
	h.SwallowAll()
	ctx, cancel := context.WithCancel(t.Context())
	reported, ended := make(chan observe.PoolSwept), make(chan struct{})
	p := NewPool(pgdriver.NewPool(db), errClosed, NewObservers(observe.Worker{}, nil, []observe.Observer{observe.On(func(s observe.PoolSwept) { reported <- s })}))
	go func() { defer close(ended); p.Sweep(ctx) }()
	p.SweepNow.Send()
	if s := <-reported; s.Idle != n || s.Alive != 0 {
		t.Errorf("the sweep of %d dead connections reported %+v", n, s)
	}
	cancel()
	<-ended
	fill()
}

// A connection on which statements fail is closed, and another one is kept.
func TestPoolKeepsSoundConnections(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).DB
	p := NewPool(pgdriver.NewPool(db), errClosed, nil)
	for _, want := range []error{nil, errors.New("refused")} {
		err := p.On(t.Context(), time.Minute, func(conn *sql.Conn) error {
			if err := conn.PingContext(t.Context()); err != nil {
				return err
			}
			return want
		})
		if kept := db.Stats().Idle == 1; err != want || kept != (want == nil) {
			t.Errorf("after %v the error is %v, the connection is kept: %t", want, err, kept)
		}
	}
}

// A worker ends after its pool was closed, also if none of its statements finds the pool closed.
func TestPoolAwaitClose(t *testing.T) {
	t.Parallel()
	for name, uses := range map[string]bool{"a statement finds it closed": true, "no statements": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open("pgx", "host=127.0.0.1 port=1")
			if err != nil {
				t.Fatal(err)
			}
			p := NewPool(pgdriver.NewPool(db), errClosed, nil)
			stopped, stop := context.WithCancel(t.Context())
			stop()
			if err := p.AwaitClose(stopped, nil); err != nil {
				t.Errorf("an open pool: %v", err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if uses {
				if err := p.On(t.Context(), time.Minute, nil); !pgdriver.IsPoolClosed(err) {
					t.Errorf("the statement failed with %v", err)
				}
				<-p.closed
			}
			var abandoned error
			if err := p.AwaitClose(t.Context(), func(why error) { abandoned = why }); err != errClosed || abandoned != errClosed {
				t.Errorf("the error is %v, handlers end with %v", err, abandoned)
			}
			<-p.closed
		})
	}
}
