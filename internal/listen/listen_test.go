package listen

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience is how long a test waits for an expected message.
const patience = pgtest.Patience

// connected is the reason for the calls after a connect: notifications may have been lost.
const connected = "because there is a new connection"

func TestRunCallsFunctions(t *testing.T) {
	d := pgtest.New(t)
	woken := map[string]chan struct{}{"Some Channel": make(chan struct{}, 100), "another": make(chan struct{}, 100)}
	channels := map[string]func(string){}
	for channel, c := range woken {
		channels[channel] = func(string) { c <- struct{}{} }
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, d.URL, channels, Health{}) }()
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
	d.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND datname = current_database()`) // after a channel's first call, its session has executed every LISTEN
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
		t.Fatal("Run did not return after its context ended")
	}
}

func TestRunErrorsOmitPasswords(t *testing.T) {
	err := Run(t.Context(), "postgres://user:secret@host:port/db", nil, Health{})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatalf("want an error without the password, got %v", err)
	}
}
