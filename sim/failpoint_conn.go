package sim

import (
	"bytes"
	"database/sql"
	"encoding/binary"
	"errors"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/stdlib"
)

// commitMessage is what pgx sends for tx.Commit.
var commitMessage = []byte("Q\x00\x00\x00\x0bcommit\x00")

// executes reports that something which is sent to the server makes it execute
// a statement: a Query or an Execute is among the messages.
func executes(b []byte) bool {
	for len(b) >= 5 {
		if b[0] == 'Q' || b[0] == 'E' {
			return true
		}
		n := 1 + uint64(binary.BigEndian.Uint32(b[1:]))
		if n > uint64(len(b)) {
			return false
		}
		b = b[n:]
	}
	return false
}

// nth waits for the statement after n others.
func nth(n int) func([]byte) bool {
	return func(b []byte) bool {
		if !executes(b) {
			return false
		}
		n--
		return n < 0
	}
}

func commits(b []byte) bool { return bytes.Contains(b, commitMessage) }

// failpointConn injects a fault exactly at a COMMIT or another statement, on
// demand: before it is sent, or after it has happened but before its answer is
// seen.
type failpointConn struct {
	net.Conn
	network *network

	mu      sync.Mutex
	at      func([]byte) bool // tells what it waits for
	unsent  func()            // injects before that is sent
	replied func()            // injects when its answer has come
	waiting bool              // for that answer
}

// atCommit arms the connection for its next COMMIT.
func (c *failpointConn) atCommit(answered bool, inject func()) { c.arm(commits, answered, inject) }

// atStatement arms it for the next statement, whichever that is.
func (c *failpointConn) atStatement(answered bool, inject func()) { c.arm(executes, answered, inject) }

func (c *failpointConn) arm(at func([]byte) bool, answered bool, inject func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.unsent, c.replied = at, nil, nil
	if answered {
		c.replied = inject
	} else {
		c.unsent = inject
	}
}

// trap is for the next connection of a network that sends what it waits for.
type trap struct {
	at       func([]byte) bool
	then     func([]byte) bool // at what of that connection it injects: also of what it waited for
	answered bool
	inject   func()
}

// enter arms the connection if it is about to walk into a trap.
func (c *failpointConn) enter(b []byte) {
	t := c.network.trap.Load()
	if t != nil && t.at(b) && c.network.trap.CompareAndSwap(t, nil) {
		c.arm(t.then, t.answered, t.inject)
	}
}

func (c *failpointConn) Write(b []byte) (int, error) {
	c.enter(b)
	c.mu.Lock()
	awaited := c.at != nil && c.at(b)
	c.waiting = awaited && c.replied != nil
	c.mu.Unlock()
	if awaited {
		if inject := c.take(&c.unsent); inject != nil {
			inject()
			return 0, errReset("write")
		}
	}
	return c.Conn.Write(b)
}

func (c *failpointConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	waiting := c.waiting
	c.mu.Unlock()
	if waiting && err == nil {
		if inject := c.take(&c.replied); inject != nil {
			inject()
			return 0, errReset("read")
		}
	}
	return n, err
}

func (c *failpointConn) take(from *func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	inject := *from
	*from = nil
	return inject
}

// failpointConnOf finds the connection below conn, which may be in a transaction.
func failpointConnOf(conn *sql.Conn) (*failpointConn, error) {
	var found *failpointConn
	err := conn.Raw(func(driverConn any) error {
		if plain, ok := driverConn.(plainConn); ok {
			driverConn = plain.Conn
		}
		if c, ok := driverConn.(*stdlib.Conn); ok {
			found, _ = c.Conn().PgConn().Conn().(*failpointConn)
		}
		return nil
	})
	if err == nil && found == nil {
		err = errors.New("sim: the connection was not made through a network of the simulation")
	}
	return found, err
}
