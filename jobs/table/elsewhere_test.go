package table

import (
	"testing"
	"time"
)

// The servers of the heartbeats and of the pool are compared by the last read of each connection.
// The heartbeats get the result, also if they lead to the same server again.
func TestHome(t *testing.T) {
	t.Parallel()
	var h home
	want := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %t, want %t", what, got, want)
		}
	}
	want("the heartbeats alone", h.beatsAt(1, time.Hour), false)
	want("the same server", h.leadsTo(1, time.Hour), false)
	want("closing", h.closes(), false)
	want("another server", h.leadsTo(2, time.Hour), true)
	want("closing", h.closes(), true)
	want("the same again", h.leadsTo(1, time.Hour), false)
	want("not told yet", h.beatsAt(1, time.Hour), true)
	h.forget()
	want("other heartbeats", h.beatsAt(2, time.Hour), false)
	want("closing", h.closes(), true)
	want("the other way round", h.leadsTo(1, 0), true)
	want("closing", h.closes(), false)

	h = home{}
	want("the first heartbeat", h.beatsAt(1, time.Hour), false)
	h.forget()
	want("the same server again", h.beatsAt(1, time.Hour), false)
	want("closing", h.closes(), false)
	h.forget()
	want("a heartbeat on another server", h.beatsAt(2, time.Hour), false)
	want("closing", h.closes(), true)
}

// A claim that is not found on its own server is lost at once. On another server the claim is lost
// after a while.
func TestIsLost(t *testing.T) {
	t.Parallel()
	if r := (&run{server: 1}); !r.isLost(1, time.Hour) {
		t.Error("not lost where it was made")
	}
	r := &run{server: 1}
	if r.isLost(2, time.Hour) {
		t.Error("lost at once on another server")
	}
	if !r.isLost(2, 0) {
		t.Error("not lost after a while")
	}
}
