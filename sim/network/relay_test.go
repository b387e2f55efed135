package network

import (
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A connection that a link has swallowed says nothing to either side, also when
// the client has closed it; a new one works. The server hears of the end when
// the link ends.
func TestLinkSwallows(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	l, err := NewLink(1, "worker 1.1", server.Addr().String)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	near, far := linked(t, l, server)
	say(t, near, far)
	say(t, far, near)
	for l.Swallow() == 0 { // it takes half of them
	}
	for _, side := range []net.Conn{near, far} {
		if _, err := side.Write([]byte("lost")); err != nil {
			t.Errorf("a write that was swallowed: %v", err)
		}
	}
	silent(t, near)
	silent(t, far)
	_ = near.Close()
	silent(t, far)
	again, other := linked(t, l, server)
	say(t, again, other)
	l.Close()
	_ = far.SetReadDeadline(time.Now().Add(pgtest.Patience))
	if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the end of the link, the server reads: %v, want the end of the connection", err)
	}
}

// linked is a connection through the link, and its end at the server.
func linked(t *testing.T, l *Link, server net.Listener) (near, far net.Conn) {
	t.Helper()
	near, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(l.Ports()[0])))
	if err == nil {
		t.Cleanup(func() { _ = near.Close() })
		far, err = server.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return near, far
}

func say(t *testing.T, from, to net.Conn) {
	t.Helper()
	_, err := from.Write([]byte("hello"))
	heard := make([]byte, 5)
	if err == nil {
		err = to.SetReadDeadline(time.Now().Add(pgtest.Patience))
	}
	if err == nil {
		_, err = io.ReadFull(to, heard)
	}
	if err != nil || string(heard) != "hello" {
		t.Fatalf("heard %q, %v", heard, err)
	}
}

func silent(t *testing.T, at net.Conn) {
	t.Helper()
	const while = 200 * time.Millisecond
	_ = at.SetReadDeadline(time.Now().Add(while))
	if n, err := at.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that was swallowed: read %d bytes, %v", n, err)
	}
}
