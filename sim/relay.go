package sim

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
)

// relay is an address for connections that the simulation cannot dial itself:
// those of the worker's listener, which has a connection string and nothing
// else, and those of a process. What comes in there goes through the network
// like everything else of that worker.
type relay struct {
	listener net.Listener
	wg       sync.WaitGroup
	mu       sync.Mutex
	accepted map[net.Conn]struct{}
	closed   bool
	filter   filter
}

// newRelay relays to the server of config, which goes through the network
// already.
func newRelay(config *pgx.ConnConfig) (*relay, error) {
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	return relayTo(func() (net.Conn, error) { return config.DialFunc(context.Background(), network, address) }, config.TLSConfig == nil)
}

// relayTo relays to where dial leads. If it is readable, the filter can drop and
// hold notifications.
func relayTo(dial func() (net.Conn, error), readable bool) (*relay, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("sim: a port for a relay: %w", err)
	}
	r := &relay{listener: listener, accepted: map[net.Conn]struct{}{}}
	r.filter.readable = readable
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
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		return false
	}
	r.accepted[c] = struct{}{}
	return true
}

func (r *relay) drop(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.accepted, c)
	_ = c.Close()
}

// serve copies in both directions until either side ends.
func (r *relay) serve(client net.Conn, dial func() (net.Conn, error)) {
	defer r.drop(client)
	server, err := dial()
	if err != nil || !r.keep(server) {
		return
	}
	defer r.drop(server)
	var back sync.WaitGroup
	back.Go(func() {
		_ = r.filter.carry(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
	_ = server.Close()
	back.Wait()
}

func (r *relay) port() int { return r.listener.Addr().(*net.TCPAddr).Port }

// url is the connection string that leads here.
func (r *relay) url(config *pgx.ConnConfig) string {
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

// close ends everything that goes through the relay. A connection inside a
// stalled network ends when that is buried.
func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	for c := range r.accepted {
		_ = c.Close()
	}
	r.mu.Unlock()
	_ = r.listener.Close()
	r.wg.Wait()
}
