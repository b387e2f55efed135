package network

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// CommitMessage is what pgx sends for tx.Commit.
var CommitMessage = []byte("Q\x00\x00\x00\x0bcommit\x00")

// Executes reports whether a sent message makes the server execute a statement: a Query or an
// Execute is in it.
func Executes(b []byte) bool {
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

// Nth returns a function that is true for the statement after n others.
func Nth(n int) func([]byte) bool {
	return func(b []byte) bool {
		if !Executes(b) {
			return false
		}
		n--
		return n < 0
	}
}

func Commits(b []byte) bool { return bytes.Contains(b, CommitMessage) }

// FailpointConn injects a fault exactly at a COMMIT or another statement, on
// demand: before it is sent, or after it has happened but before its answer is
// seen.
type FailpointConn struct {
	net.Conn
	network *Network

	mu      sync.Mutex
	at      func([]byte) bool // reports whether a message is the awaited one
	unsent  func()            // injects before the message is sent
	replied func()            // injects when its answer has come
	waiting bool              // for that answer
}

// AtCommit arms the connection for its next COMMIT.
func (c *FailpointConn) AtCommit(answered bool, inject func()) { c.arm(Commits, answered, inject) }

// AtStatement arms the connection for its next statement, whichever that is.
func (c *FailpointConn) AtStatement(answered bool, inject func()) { c.arm(Executes, answered, inject) }

func (c *FailpointConn) arm(at func([]byte) bool, answered bool, inject func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.unsent, c.replied = at, nil, nil
	if answered {
		c.replied = inject
	} else {
		c.unsent = inject
	}
}

// trap is for the next connection of a network that sends an awaited message.
type trap struct {
	at       func([]byte) bool
	then     func([]byte) bool // at which message of that connection it injects, perhaps the awaited one
	answered bool
	inject   func()
}

// enter arms the connection if a message is the trap's.
func (c *FailpointConn) enter(b []byte) {
	t := c.network.trap.Load()
	if t != nil && t.at(b) && c.network.trap.CompareAndSwap(t, nil) {
		c.arm(t.then, t.answered, t.inject)
	}
}

func (c *FailpointConn) Write(b []byte) (int, error) {
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

func (c *FailpointConn) Read(b []byte) (int, error) {
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

func (c *FailpointConn) take(from *func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	inject := *from
	*from = nil
	return inject
}

// ConnOf finds the connection below conn, which may be in a transaction.
func ConnOf(conn *sql.Conn) (*FailpointConn, error) {
	var found *FailpointConn
	err := conn.Raw(func(driverConn any) error {
		if plain, ok := driverConn.(plainConn); ok {
			driverConn = plain.Conn
		}
		if c, ok := driverConn.(*stdlib.Conn); ok {
			found, _ = c.Conn().PgConn().Conn().(*FailpointConn)
		}
		return nil
	})
	if err == nil && found == nil {
		err = errors.New("sim: the connection was not made through a network of the simulation")
	}
	return found, err
}

// ExecModes are the ways in which pgx can send a statement.
var ExecModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement,
	pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec,
	pgx.QueryExecModeSimpleProtocol,
}

// OpenPlain opens a pool whose connections plainConnector makes.
func OpenPlain(config *pgx.ConnConfig) *sql.DB {
	return sql.OpenDB(plainConnector{stdlib.GetConnector(*config)})
}

// plainConnector makes connections as most drivers do. Where pgx closes a connection on which a
// transaction was left open, these drivers give it to the next caller. The library does not know
// them.
type plainConnector struct{ driver.Connector }

func (c plainConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return plainConn{conn.(*stdlib.Conn)}, nil
}

type plainConn struct{ *stdlib.Conn }

func (c plainConn) ResetSession(context.Context) error {
	if c.Conn.Conn().IsClosed() {
		return driver.ErrBadConn
	}
	return nil
}

// Failpoint is a fault that waits for a moment.
type Failpoint struct {
	inject func()
	state  atomic.Int32
	Hit    chan struct{} // closed when the fault was injected
}

const (
	armed int32 = iota
	fired
	disarmed
)

// NewFailpoint returns one that injects a fault when it fires.
func NewFailpoint(inject func()) *Failpoint {
	return &Failpoint{inject: inject, Hit: make(chan struct{})}
}

// Fire injects the fault, once, unless the failpoint was disarmed.
func (p *Failpoint) Fire() {
	if p.state.CompareAndSwap(armed, fired) {
		p.inject()
		close(p.Hit)
	}
}

// Disarm reports whether the fault was not injected, and never will be.
func (p *Failpoint) Disarm() bool { return p.state.CompareAndSwap(armed, disarmed) }
