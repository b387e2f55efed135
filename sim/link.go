package sim

import (
	"context"
	"net"

	"github.com/pgfrontier/worker/sim/fault"
)

// Link is the network between one worker process of a [Driver] and the servers.
// It delays now and then what goes through, and breaks as networks do. Each
// address behind it has a port of its own on 127.0.0.1.
type Link struct {
	net    *network
	relays []*relay
}

// NewLink leads to addresses, which are asked for at each new connection. The
// caller must Close the link when the process has ended.
func NewLink(seed uint64, process string, addresses ...func() string) (*Link, error) {
	l := &Link{net: newNetwork(fault.Dice(seed, "link of "+process))}
	var d net.Dialer
	for _, address := range addresses {
		r, err := relayTo(func() (net.Conn, error) { return l.net.dial(context.Background(), d.DialContext, "tcp4", address()) }, false)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.relays = append(l.relays, r)
	}
	return l, nil
}

// Ports are where the addresses are reached, in their order.
func (l *Link) Ports() (ports []int) {
	for _, r := range l.relays {
		ports = append(ports, r.port())
	}
	return ports
}

// Swallow makes half of the connections die in silence, and returns how many.
// New ones work. The server hears of the end of a dead connection at the next
// Swallow or at Close, so that dead connections cannot fill it.
func (l *Link) Swallow() (swallowed int) {
	l.net.drain()
	return l.net.swallow()
}

// Mislead makes half of the new connections lead to another address, until it is
// told "". It resets those that there are, and returns how many connections were
// misled before. These stay where they are.
func (l *Link) Mislead(to string) (led int) { return l.net.mislead(to) }

// Close ends all connections and waits until none is left.
func (l *Link) Close() {
	l.net.cleanUp()
	for _, r := range l.relays {
		r.close()
	}
}
