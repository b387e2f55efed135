package pgtest

import (
	"bytes"
	"context"
	"database/sql"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Hole makes connections die in silence: neither side hears of the other any
// more, and nobody gets an error. A firewall or NAT that has forgotten a
// connection does this. Connections that are made later work.
type Hole struct {
	// GivesUp makes a read of such a connection fail, as after TCP_USER_TIMEOUT. Then a test of
	// what follows need not set a short limit for statements, which a busy machine exceeds.
	GivesUp bool

	mu     sync.Mutex
	text   []byte // of the statement that falls in; nil: none
	after  bool   // the server gets that statement, and its answer is lost
	fallen int
	conns  map[*holeConn]struct{}
}

// OpenHole opens another pool on the database, over pgx, whose connections a
// Hole can swallow. It is closed in cleanup.
func (d *Database) OpenHole(t testing.TB) (*sql.DB, *Hole) {
	t.Helper()
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal("pgtest: pgx does not understand the connection string")
	}
	h := &Hole{conns: map[*holeConn]struct{}{}}
	cfg.DialFunc = h.dial
	t.Cleanup(h.end)
	return closed(t, stdlib.OpenDB(*cfg)), h
}

// Swallow makes the next connection that sends text fall in: the server does
// not get that statement, nor anything later.
func (h *Hole) Swallow(text string) { h.arm(text, false) }

// SwallowAnswer makes the next connection that sends text fall in right after:
// the server executes that statement.
func (h *Hole) SwallowAnswer(text string) { h.arm(text, true) }

func (h *Hole) arm(text string, after bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text, h.after = []byte(text), after
}

// SwallowAll makes all present connections fall in, and returns how many.
func (h *Hole) SwallowAll() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns {
		if c.fall() {
			n++
		}
	}
	h.fallen += n
	return n
}

// Fallen counts the connections that have fallen in.
func (h *Hole) Fallen() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fallen
}

func (h *Hole) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &holeConn{Conn: conn, h: h, changed: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns[c] = struct{}{}
	return c, nil
}

// takes reports whether b is the statement that is waited for.
func (h *Hole) takes(b []byte) (taken, after bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.text == nil || !bytes.Contains(b, h.text) {
		return false, false
	}
	h.text = nil
	h.fallen++
	return true, h.after
}

// end closes what has fallen in: until then the server knows nothing of it.
func (h *Hole) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns {
		c.change(func() { c.closed = true })
		_ = c.Conn.Close()
	}
}

// holeConn is a connection that may fall in.
type holeConn struct {
	net.Conn
	h     *Hole
	falls atomic.Bool // with the next answer

	mu       sync.Mutex
	fallen   bool
	closed   bool
	deadline time.Time
	changed  chan struct{} // closed when one of these changes
}

func (c *holeConn) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// fall makes the connection fall in, and reports whether it does only now.
func (c *holeConn) fall() (now bool) {
	c.change(func() { now, c.fallen = !c.fallen && !c.closed, true })
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // wakes a reader
	return now
}

func (c *holeConn) isFallen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fallen
}

func (c *holeConn) Write(b []byte) (int, error) {
	if c.isFallen() {
		return len(b), nil
	}
	taken, after := c.h.takes(b)
	if taken && after && c.h.GivesUp {
		c.falls.Store(true) // once the server has answered
	} else if taken {
		c.fall()
	}
	if taken && !after {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *holeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.falls.Load() {
		c.fall()
	}
	if !c.isFallen() {
		return n, err
	}
	return 0, c.silence()
}

// silence waits for the end of a read to which nobody answers.
func (c *holeConn) silence() error {
	for !c.h.GivesUp {
		c.mu.Lock()
		closed, deadline, changed := c.closed, c.deadline, c.changed
		c.mu.Unlock()
		if closed {
			return net.ErrClosed
		}
		var expired <-chan time.Time
		if !deadline.IsZero() {
			expired = time.After(time.Until(deadline))
		}
		select {
		case <-changed:
		case <-expired:
			return os.ErrDeadlineExceeded
		}
	}
	return syscall.ETIMEDOUT
}

func (c *holeConn) SetDeadline(t time.Time) error {
	c.change(func() { c.deadline = t })
	if c.isFallen() {
		return nil
	}
	return c.Conn.SetDeadline(t)
}

func (c *holeConn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

func (c *holeConn) SetWriteDeadline(time.Time) error { return nil }

// Close closes the connection. The server does not hear of it if that has
// fallen in.
func (c *holeConn) Close() error {
	c.change(func() { c.closed = true })
	if c.isFallen() {
		return nil
	}
	c.h.mu.Lock()
	delete(c.h.conns, c)
	c.h.mu.Unlock()
	return c.Conn.Close()
}
