package frontier

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store"
)

// connected is why all are woken: notifications may have been lost.
const connected = "because there is a new connection"

func TestListenWakes(t *testing.T) {
	d := pgtest.New(t)
	woken := map[string]chan struct{}{"Some Channel": make(chan struct{}, 100), "another": make(chan struct{}, 100)}
	channels := map[string]func(string){}
	for channel, c := range woken {
		channels[channel] = func(string) { c <- struct{}{} }
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Listen(ctx, d.URL, channels, ListenerHealth{}, store.NoOpLogger{}) }()
	awaitWake := func(channel, what string) {
		t.Helper()
		select {
		case <-woken[channel]:
		case <-time.After(patience):
			t.Fatalf("awaited a wakeup of %s %s", channel, what)
		}
		for other, c := range woken {
			if len(c) > 0 && what != connected {
				t.Fatalf("%s was woken, too, awaited was %s %s", other, channel, what)
			}
		}
	}
	awaitAll := func() {
		t.Helper()
		for channel := range woken {
			awaitWake(channel, connected)
		}
	}
	awaitAll()
	for channel := range woken {
		d.Exec(t, `SELECT pg_notify($1::text, '')`, channel)
		awaitWake(channel, "for a notification")
	}
	awaitQuery(t, d.DB, `SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE query LIKE 'LISTEN %'`)
	awaitAll()
	for channel := range woken {
		d.Exec(t, `SELECT pg_notify($1::text, '')`, channel)
		awaitWake(channel, "for a notification on the new connection")
	}
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
	err := Listen(t.Context(), "postgres://user:secret@host:port/db", nil, ListenerHealth{}, store.NoOpLogger{})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatalf("want an error without the password, got %v", err)
	}
}
