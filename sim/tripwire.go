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

func commits(b []byte) bool { return bytes.Contains(b, commitMessage) }

// commitConn strikes exactly at a COMMIT or another statement, on demand:
// before it is sent, or after it has happened but before its answer is seen.
type commitConn struct {
	net.Conn

	mu      sync.Mutex
	at      func([]byte) bool // tells what it waits for
	unsent  func()            // strikes before that is sent
	replied func()            // strikes when its answer has come
	waiting bool              // for that answer
}

// atCommit arms the connection for its next COMMIT.
func (c *commitConn) atCommit(answered bool, strike func()) { c.arm(commits, answered, strike) }

// atStatement arms it for the next statement, whichever that is.
func (c *commitConn) atStatement(answered bool, strike func()) { c.arm(executes, answered, strike) }

func (c *commitConn) arm(at func([]byte) bool, answered bool, strike func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.unsent, c.replied = at, nil, nil
	if answered {
		c.replied = strike
	} else {
		c.unsent = strike
	}
}

func (c *commitConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	awaited := c.at != nil && c.at(b)
	c.waiting = awaited && c.replied != nil
	c.mu.Unlock()
	if awaited {
		if strike := c.take(&c.unsent); strike != nil {
			strike()
			return 0, errReset("write")
		}
	}
	return c.Conn.Write(b)
}

func (c *commitConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	waiting := c.waiting
	c.mu.Unlock()
	if waiting && err == nil {
		if strike := c.take(&c.replied); strike != nil {
			strike()
			return 0, errReset("read")
		}
	}
	return n, err
}

func (c *commitConn) take(from *func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	strike := *from
	*from = nil
	return strike
}

// commitConnOf finds the connection below conn, which may be in a transaction.
func commitConnOf(conn *sql.Conn) (*commitConn, error) {
	var found *commitConn
	err := conn.Raw(func(driverConn any) error {
		if c, ok := driverConn.(*stdlib.Conn); ok {
			found, _ = c.Conn().PgConn().Conn().(*commitConn)
		}
		return nil
	})
	if err == nil && found == nil {
		err = errors.New("sim: the connection was not made through a network of the simulation")
	}
	return found, err
}
