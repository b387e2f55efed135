package network

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
	n := New(nil)
	n.Carry(config)
	r, err := NewRelay(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.CleanUp(); r.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.URL(config))
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
		mode  Mode
		sends string
		gets  string
	}{
		{Dropping, "lost", "after"},
		{Holding, "kept", "kept after"},
		{Passing, "on time", "on time after"},
	} {
		r.Filter.Change(c.mode)
		d.Exec(t, `SELECT pg_notify('news', $1)`, c.sends)
		if c.mode != Passing {
			eventually(t, "the filter to meet the notification", func() bool { r.Filter.mu.Lock(); defer r.Filter.mu.Unlock(); return r.Filter.count == 1 })
		}
		exec(`SELECT 1`)
		r.Filter.Change(Passing)
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
