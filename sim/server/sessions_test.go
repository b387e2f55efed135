package server

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim/network"
)

// TestListenerIsFound ends the backend of a listener, and of nobody else.
func TestListenerIsFound(t *testing.T) {
	t.Parallel()
	on := newDatabase(t)
	const who = "worker 9.1"
	config := on.Config(who)
	n := network.New(nil)
	n.Carry(config)
	r, err := network.NewRelay(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.CleanUp(); r.Close() })
	var conns [2]*pgx.Conn
	for i := range conns {
		if conns[i], err = pgx.Connect(t.Context(), r.URL(config)); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close(context.WithoutCancel(t.Context()))
	}
	for i, statement := range []string{`LISTEN "news"`, `SELECT 1`} {
		if _, err := conns[i].Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if ended, err := on.Terminate(t.Context(), who, ListenerBackends); err != nil || !ended {
		t.Fatalf("no listener was found: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	if _, err := conns[0].WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the listener lives: %v", err)
	}
	if _, err := conns[1].Exec(t.Context(), `SELECT 1`); err != nil {
		t.Errorf("another was ended: %v", err)
	}
}
