// Package network breaks what lies between a process and the database, as networks do.
package network

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/sim/fault"
)

// Network is everything between one process and the database. It breaks as networks and processes
// break: the server gets no message, and must notice.
type Network struct {
	mu    sync.Mutex
	conns map[*faultConn]struct{}
	gate  chan struct{} // closed while traffic flows
	down  bool          // no new connections
	gone  bool          // what the client closes stays half open
	far   time.Duration // how long an answer takes, about
	lead  string        // where some of the new connections lead; empty: where they should
	led   int           // how many did
	dice  *rand.Rand    // nil: no delays
	trap  atomic.Pointer[trap]
}

// New makes a network with delays that dice draw, so that moments that lie close together come
// apart. Nil dice draw none.
func New(dice *rand.Rand) *Network {
	n := &Network{conns: map[*faultConn]struct{}{}, gate: make(chan struct{}), dice: dice}
	close(n.gate)
	return n
}

// delay draws by how much something is delayed: mostly not at all.
func (n *Network) delay() time.Duration {
	if n.dice == nil {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !fault.Chance(n.dice, 0.004) {
		return 0
	}
	return fault.Between(n.dice, 10*time.Millisecond, 50*time.Millisecond)
}

// distance draws by how much an answer is delayed because the server is far.
func (n *Network) distance() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.far == 0 {
		return 0
	}
	return time.Duration((0.5 + n.dice.Float64()) * float64(n.far))
}

// Remove takes the server away: from now on an answer takes about that long.
func (n *Network) Remove(far time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.far = far
}

// Carry makes config's connections go through n.
func (n *Network) Carry(config *pgx.ConnConfig) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		return n.dial(ctx, dial, network, address)
	}
	// This layer is above TLS, where a COMMIT can be told from other traffic.
	config.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, c net.Conn) (net.Conn, error) {
		return &FailpointConn{Conn: c, network: n}, nil
	}
}

func (n *Network) dial(ctx context.Context, dial pgconn.DialFunc, network, address string) (net.Conn, error) {
	select {
	case <-n.flow():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	refused := n.down
	if n.lead != "" && fault.Chance(n.dice, 0.5) {
		address = n.lead
		n.led++
	}
	n.mu.Unlock()
	if refused {
		return nil, errRefused(network)
	}
	raw, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		_ = raw.Close()
		return nil, errRefused(network)
	}
	c := &faultConn{Conn: raw, network: n, closed: make(chan struct{}), changed: make(chan struct{})}
	n.conns[c] = struct{}{}
	return c, nil
}

// SetTrap sets the trap, which replaces an earlier one. The trap waits for a connection that sends
// a message for which at is true. It injects a fault once, at a message of this connection for
// which then is true, perhaps the same: before the message is sent, or when it is answered.
func (n *Network) SetTrap(at, then func([]byte) bool, answered bool, inject func()) {
	n.trap.Store(&trap{at, then, answered, inject})
}

// ClearTrap takes the trap away.
func (n *Network) ClearTrap() { n.trap.Store(nil) }

// flow returns a channel that is closed while traffic flows.
func (n *Network) flow() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gate
}

// Cut resets every connection. New ones can be made.
func (n *Network) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.sever()
	}
}

// Crash resets every connection, and no new ones can be made: the process is
// gone.
func (n *Network) Crash() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	n.Cut()
}

// Mislead makes half of the new connections lead to another server, until it is called with "". It
// resets the existing connections, and returns how many were misled before.
func (n *Network) Mislead(to string) (led int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	led, n.led, n.lead = n.led, 0, to
	for c := range n.conns {
		if to != "" {
			c.sever()
		}
	}
	return led
}

// Swallow makes half of the connections die in silence, and returns how many.
// New ones work.
func (n *Network) Swallow() (swallowed int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if fault.Chance(n.dice, 0.5) && c.swallow() {
			swallowed++
		}
	}
	return swallowed
}

// Drain tells the server of the end of the connections that died in silence.
func (n *Network) Drain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.isSwallowed() {
			c.sever()
		}
	}
}

// Stall lets nothing through, in either direction, until release.
func (n *Network) Stall() {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.gate:
		n.gate = make(chan struct{})
	default: // stalled already
	}
}

// Release ends a stall. What was closed meanwhile, the server hears of now.
func (n *Network) Release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.gate:
		return
	default:
	}
	close(n.gate)
	for c := range n.conns {
		if c.isClosed() {
			c.sever()
		}
	}
}

// Vanish is the crash of a whole machine: the server hears nothing of the end
// of its connections until CleanUp.
func (n *Network) Vanish() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down, n.gone = true, true
	for c := range n.conns {
		c.shut(true)
		_ = c.Conn.SetDeadline(time.Unix(1, 0)) // ends calls that wait for the server
	}
}

// CleanUp frees what a crash has left.
func (n *Network) CleanUp() {
	n.Crash()
	n.Release()
}
