package network

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// faultConn is a connection of a network.
type faultConn struct {
	net.Conn
	network *Network
	closed  chan struct{} // closed by the client's Close and by sever

	mu       sync.Mutex
	cut      bool // by sever
	hole     bool // it has died in silence
	done     bool // closed is closed
	deadline time.Time
	changed  chan struct{} // closed when the deadline changes
}

// sever resets the connection; the network's lock is held. Without linger the
// kernel sends a reset.
func (c *faultConn) sever() {
	c.shut(true)
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Conn.Close()
	delete(c.network.conns, c)
}

// shut marks the end of the client's use of the connection.
func (c *faultConn) shut(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = c.cut || cut
	if !c.done {
		c.done = true
		close(c.closed)
	}
}

func (c *faultConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// swallow makes the connection a black hole: what is written is gone, nothing
// comes any more, and neither side is told. It reports whether somebody used it.
func (c *faultConn) swallow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done || c.hole {
		return false
	}
	c.hole = true
	close(c.changed)
	c.changed = make(chan struct{})
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // ends reads that wait for the server
	return true
}

func (c *faultConn) isSwallowed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hole
}

func (c *faultConn) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

// Close closes the connection. In a stall the server hears of it later. Of a connection that died
// in silence it hears when all of the network ends.
func (c *faultConn) Close() error {
	c.shut(false)
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.network.gone || c.isSwallowed() {
		return nil
	}
	select {
	case <-c.network.gate:
		delete(c.network.conns, c)
		return c.Conn.Close()
	default:
		return nil
	}
}

func (c *faultConn) Read(b []byte) (int, error) {
	if err := c.pass("read"); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if c.isCut() {
		return 0, errReset("read")
	}
	if c.isSwallowed() {
		return 0, c.pass("read") // until its deadline, or its end
	}
	if err != nil {
		return n, err
	}
	c.wait(c.network.delay() + c.network.distance())
	// The answer may have come after a stall began. If it were given up here, at its deadline, the
	// client would give up the connection, too.
	if err := c.pass("read"); err != nil {
		return 0, err
	}
	return n, nil
}

// wait waits out a delay.
func (c *faultConn) wait(d time.Duration) {
	if d == 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.closed:
	}
}

func (c *faultConn) Write(b []byte) (int, error) {
	c.wait(c.network.delay())
	if err := c.pass("write"); err != nil {
		return 0, err
	}
	if c.isSwallowed() {
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	if err != nil && c.isCut() {
		err = errReset("write")
	}
	return n, err
}

// pass waits until traffic flows.
func (c *faultConn) pass(op string) error {
	for {
		flow := c.network.flow()
		c.mu.Lock()
		deadline, changed, cut, done := c.deadline, c.changed, c.cut, c.done
		if c.hole && op == "read" {
			flow = nil // never
		}
		c.mu.Unlock()
		switch {
		case cut:
			return errReset(op)
		case done:
			return net.ErrClosed
		}
		select {
		case <-flow:
			return nil
		default:
		}
		var expired <-chan time.Time
		stop := func() bool { return true }
		if !deadline.IsZero() {
			t := time.NewTimer(time.Until(deadline))
			expired, stop = t.C, t.Stop
		}
		select {
		case <-c.closed:
		case <-flow:
		case <-changed:
		case <-expired:
			return os.ErrDeadlineExceeded
		}
		stop()
	}
}

// SetDeadline also ends the waiting in a stall: it is how a context's end
// interrupts pgx.
func (c *faultConn) SetDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline is how a pool checks whether a connection is still there.
func (c *faultConn) SetReadDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *faultConn) expire(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = at
	close(c.changed)
	c.changed = make(chan struct{})
}

func errReset(op string) error {
	return &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, syscall.ECONNRESET)}
}

func errRefused(network string) error {
	return &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}
