package sim

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// TestFilterDropsAndHoldsNotifications listens through a relay, and sees to it
// that all else passes meanwhile.
func TestFilterDropsAndHoldsNotifications(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	n := newNetwork(nil)
	n.carry(config)
	r, err := newRelay(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.cleanUp(); r.close() })
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.url(config))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`LISTEN news`)
	// The filter counts what it has dropped or held; then it passes everything.
	for _, c := range []struct {
		mode  mode
		sends string
		gets  string
	}{
		{dropping, "lost", "after"},
		{holding, "kept", "kept after"},
		{passing, "on time", "on time after"},
	} {
		r.filter.change(c.mode)
		d.Exec(t, `SELECT pg_notify('news', $1)`, c.sends)
		if c.mode != passing {
			eventually(t, "the filter to meet the notification", func() bool { r.filter.mu.Lock(); defer r.filter.mu.Unlock(); return r.filter.count == 1 })
		}
		exec(`SELECT 1`)
		r.filter.change(passing)
		d.Exec(t, `SELECT pg_notify('news', 'after')`)
		var got []string
		for len(got) == 0 || got[len(got)-1] != "after" {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				t.Fatalf("waiting for a notification after %q: %v", got, err)
			}
			got = append(got, n.Payload)
		}
		if strings.Join(got, " ") != c.gets {
			t.Errorf("in mode %d the listener got %q, want %q", c.mode, got, c.gets)
		}
	}
}

// TestListenerIsFound ends the backend of a listener, and of nobody else.
func TestListenerIsFound(t *testing.T) {
	t.Parallel()
	on := databaseOn(t, pgtest.Server(t).URL(""))
	t.Cleanup(func() {
		if err := on.drop(); err != nil {
			t.Error(err)
		}
	})
	const who = "worker 9.1"
	config := on.config(who)
	n := newNetwork(nil)
	n.carry(config)
	r, err := newRelay(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.cleanUp(); r.close() })
	var conns [2]*pgx.Conn
	for i := range conns {
		if conns[i], err = pgx.Connect(t.Context(), r.url(config)); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close(context.WithoutCancel(t.Context()))
	}
	for i, statement := range []string{`LISTEN "news"`, `SELECT 1`} {
		if _, err := conns[i].Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if ended, err := on.terminate(t.Context(), who, ofTheListener); err != nil || !ended {
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

func TestMessagesAreReadWhole(t *testing.T) {
	t.Parallel()
	first, second := []byte("A\x00\x00\x00\x08abcd"), []byte("Z\x00\x00\x00\x05I")
	from := bytes.NewReader(append(bytes.Clone(first), second...))
	for _, want := range [][]byte{first, second} {
		got, err := readMessage(from)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %q, %v, want %q", got, err, want)
		}
	}
	if _, err := readMessage(from); err != io.EOF {
		t.Errorf("after the last message: %v, want io.EOF", err)
	}
	if _, err := readMessage(strings.NewReader("A\x00\x00\x00\x03")); err == nil || !strings.Contains(err.Error(), "no message") {
		t.Errorf("a length that does not count itself: %v", err)
	}
}
