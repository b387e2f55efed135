package frontier

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store"
)

func TestListenWakes(t *testing.T) {
	d := pgtest.New(t)
	woken := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Listen(ctx, d.URL, "Some Channel", func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		}, store.NoOpLogger{})
	}()
	awaitWake := func(what string) {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(patience):
			t.Fatalf("awaited a wakeup %s", what)
		}
	}
	awaitWake("for the connection")
	d.Exec(t, `SELECT pg_notify('Some Channel', $1::text)`, "1")
	awaitWake("for a notification")
	awaitQuery(t, d.DB, `SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE query = 'LISTEN "Some Channel"'`)
	awaitWake("for the connection after it was lost: notifications may have been, too")
	d.Exec(t, `SELECT pg_notify('Some Channel', $1::text)`, "2")
	awaitWake("for a notification on the new connection")
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("Listen did not return after its context ended")
	}
}

func TestListenKeepsSecrets(t *testing.T) {
	err := Listen(t.Context(), "postgres://user:secret@host:port/db", "c", func() {}, store.NoOpLogger{})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatalf("want an error without the password, got %v", err)
	}
}
