package coord

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// pooler is a small transaction-pooling proxy. A client has a session of the server from the
// first message of a transaction to its end.
type pooler struct {
	listener net.Listener
	choose   func(idle []*pgconn.HijackedConn) int
	sticky   atomic.Bool // a client keeps its session after the transaction
	wg       sync.WaitGroup

	mu      sync.Mutex
	freed   *sync.Cond
	idle    []*pgconn.HijackedConn
	clients map[net.Conn]bool
}

// startPooler starts a proxy with the given number of server sessions. choose selects one for
// a transaction.
func startPooler(t *testing.T, d *pgtest.Database, sessions int, choose func([]*pgconn.HijackedConn) int) *pooler {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{listener: listener, choose: choose, clients: map[net.Conn]bool{}}
	p.freed = sync.NewCond(&p.mu)
	for range sessions {
		conn, err := pgconn.Connect(t.Context(), d.URL)
		if err != nil {
			t.Fatal(err)
		}
		server, err := conn.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		p.idle = append(p.idle, server)
	}
	all := append([]*pgconn.HijackedConn{}, p.idle...)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		for _, server := range all {
			server.Conn.Close()
		}
		p.mu.Lock()
		for c := range p.clients {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *pooler) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.clients[client] = true
		p.mu.Unlock()
		p.wg.Go(func() {
			defer client.Close()
			_ = p.serve(client)
		})
	}
}

// serve serves one client's connection.
func (p *pooler) serve(client net.Conn) error {
	b := pgproto3.NewBackend(client, client)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return err
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	b.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: make([]byte, 4)})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := b.Flush(); err != nil {
		return err
	}
	var server *pgconn.HijackedConn
	defer func() { p.give(server) }()
	for {
		message, err := b.Receive()
		if err != nil {
			return err
		}
		if _, ok := message.(*pgproto3.Terminate); ok {
			return nil
		}
		if server == nil {
			server = p.take()
		}
		if err := transact(b, server.Frontend, message); err != nil {
			return err
		}
		if !p.sticky.Load() {
			p.give(server)
			server = nil
		}
	}
}

// transact forwards messages until the transaction that begins with message has ended.
func transact(b *pgproto3.Backend, server *pgproto3.Frontend, message pgproto3.FrontendMessage) (err error) {
	for {
		server.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			if err := server.Flush(); err != nil {
				return err
			}
			status, err := answer(b, server)
			if err != nil || status == 'I' {
				return err
			}
		}
		if message, err = b.Receive(); err != nil {
			return err
		}
	}
}

// answer forwards the server's messages until the server is ready for a query.
func answer(b *pgproto3.Backend, server *pgproto3.Frontend) (status byte, err error) {
	for {
		message, err := server.Receive()
		if err != nil {
			return 0, err
		}
		b.Send(message)
		if ready, ok := message.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus, b.Flush()
		}
	}
}

func (p *pooler) take() *pgconn.HijackedConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) == 0 {
		p.freed.Wait()
	}
	i := p.choose(p.idle)
	server := p.idle[i]
	p.idle = append(p.idle[:i], p.idle[i+1:]...)
	return server
}

func (p *pooler) give(server *pgconn.HijackedConn) {
	if server == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, server)
	p.freed.Signal()
}

// config connects through the pooler, with settings that work behind a pooler.
func (p *pooler) config(t *testing.T) Config {
	t.Helper()
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: p.listener.Addr().String(), Path: "any", RawQuery: "sslmode=disable"}
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { db.Close() })
	return config(db, six...)
}

func last(idle []*pgconn.HijackedConn) int { return len(idle) - 1 }
func first([]*pgconn.HijackedConn) int     { return 0 }

// Session locks protect nothing behind a transaction-pooling proxy. Register detects the
// proxy, whichever session the proxy uses for a transaction.
func TestPoolerIsRejected(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sessions int
		choose   func([]*pgconn.HijackedConn) int
	}{"one": {1, last}, "the last used": {3, last}, "in turns": {3, first}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			p := startPooler(t, d, test.sessions, test.choose)
			err := New(p.config(t)).Register(context.Background())
			if !errors.Is(err, errTransactionPooling) {
				t.Errorf("Register: %v", err)
			}
			if n := scan[int](t, d.DB, `SELECT count(*) FROM worker_nodes`); n != 0 {
				t.Error("the worker registered nevertheless")
			}
		})
	}
}

// Run detects a proxy that starts pooling later and returns an error, since no retry can
// succeed.
func TestPoolerIsRejectedLater(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	p := startPooler(t, d, 3, first)
	p.sticky.Store(true)
	c := New(p.config(t))
	if err := c.Register(context.Background()); err != nil {
		t.Fatalf("Run failed while the client keeps its session: %v", err)
	}
	p.sticky.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Run(ctx); !errors.Is(err, errTransactionPooling) {
		t.Errorf("Run: %v", err)
	}
	if err := c.Leave(context.Background(), false); err != nil {
		t.Error(err)
	}
}

// The lease works behind a transaction-pooling proxy.
func TestPoolerWithLease(t *testing.T) {
	t.Parallel()
	p := startPooler(t, pgtest.New(t), 3, first)
	var workers []*worker
	for range 3 {
		workers = append(workers, start(t, withLease(p.config(t), true)))
		awaitShares(workers...)
	}
	workers[0].leave()
	awaitShares(workers[1:]...)
}
