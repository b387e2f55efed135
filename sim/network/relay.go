package network

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/sim/fault"
)

// Relay is an address for connections that the simulation cannot dial itself: of a worker's
// listener, which has only a connection string, and of a process. These connections go through the
// network as all others of that worker do.
type Relay struct {
	listener net.Listener
	wg       sync.WaitGroup
	mu       sync.Mutex
	accepted map[net.Conn]struct{}
	closed   bool
	Filter   Filter
}

// NewRelay relays to the server of config, which goes through the network
// already.
func NewRelay(config *pgx.ConnConfig) (*Relay, error) {
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	return RelayTo(func() (net.Conn, error) { return config.DialFunc(context.Background(), network, address) }, config.TLSConfig == nil)
}

// RelayTo relays to where dial leads. If it is readable, the filter can drop and
// hold notifications.
func RelayTo(dial func() (net.Conn, error), readable bool) (*Relay, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("sim: a port for a relay: %w", err)
	}
	r := &Relay{listener: listener, accepted: map[net.Conn]struct{}{}}
	r.Filter.readable = readable
	r.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if !r.keep(client) {
				return
			}
			r.wg.Go(func() { r.serve(client, dial) })
		}
	})
	return r, nil
}

// keep remembers a connection that close must end.
func (r *Relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		return false
	}
	r.accepted[c] = struct{}{}
	return true
}

func (r *Relay) drop(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.accepted, c)
	_ = c.Close()
}

// serve copies in both directions until either side ends.
func (r *Relay) serve(client net.Conn, dial func() (net.Conn, error)) {
	defer r.drop(client)
	server, err := dial()
	if err != nil || !r.keep(server) {
		return
	}
	defer r.drop(server)
	var back sync.WaitGroup
	back.Go(func() {
		_ = r.Filter.carry(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
	_ = server.Close()
	back.Wait()
}

func (r *Relay) port() int { return r.listener.Addr().(*net.TCPAddr).Port }

// URL is the connection string that leads here.
func (r *Relay) URL(config *pgx.ConnConfig) string {
	mode := "disable"
	if config.TLSConfig != nil {
		mode = "require"
	}
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(config.User, config.Password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port())),
		Path:     "/" + config.Database,
		RawQuery: "sslmode=" + mode + "&application_name=" + url.PathEscape(config.RuntimeParams["application_name"]),
	}
	return u.String()
}

// Close ends everything that goes through the relay. A connection inside a stalled network ends
// when the network is cleaned up.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	for c := range r.accepted {
		_ = c.Close()
	}
	r.mu.Unlock()
	_ = r.listener.Close()
	r.wg.Wait()
}

// Link is the network between one worker process of a [Driver] and the servers.
// It delays now and then what goes through, and breaks as networks do. Each
// address behind it has a port of its own on 127.0.0.1.
type Link struct {
	net    *Network
	relays []*Relay
}

// NewLink leads to addresses, which are asked for at each new connection. The
// caller must Close the link when the process has ended.
func NewLink(seed uint64, process string, addresses ...func() string) (*Link, error) {
	l := &Link{net: New(fault.Dice(seed, "link of "+process))}
	var d net.Dialer
	for _, address := range addresses {
		r, err := RelayTo(func() (net.Conn, error) { return l.net.dial(context.Background(), d.DialContext, "tcp4", address()) }, false)
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
	l.net.Drain()
	return l.net.Swallow()
}

// Mislead makes half of the new connections lead to another address, until it is called with "". It
// resets the existing connections, and returns how many were misled before. These stay where they
// are.
func (l *Link) Mislead(to string) (led int) { return l.net.Mislead(to) }

// Close ends all connections and waits until none is left.
func (l *Link) Close() {
	l.net.CleanUp()
	for _, r := range l.relays {
		r.Close()
	}
}
