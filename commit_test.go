package worker_test

import (
	"bytes"
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/pgtest"
	"github.com/pgfrontier/worker/store/consumer"
)

// cutter breaks a connection on either side of a COMMIT: before the server
// gets it, or after it got it and before the answer comes back.
type cutter struct {
	before, after atomic.Int32 // how often still
}

func (c *cutter) open(t *testing.T, d *pgtest.Database) *sql.DB {
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &cutConn{Conn: conn, c: c}, err
	}
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { db.Close() })
	return db
}

type cutConn struct {
	net.Conn
	c *cutter
}

func (c *cutConn) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("commit\x00")) {
		return c.Conn.Write(b)
	}
	if c.c.before.Add(-1) >= 0 {
		c.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(b)
	if c.c.after.Add(-1) >= 0 {
		// Wait for the answer, so that the COMMIT has happened, and drop it.
		_, _ = c.Conn.Read(make([]byte, 1))
		c.Close()
	}
	return n, err
}

func TestCommitOfUnknownOutcome(t *testing.T) {
	for name, arm := range map[string]func(*cutter){
		"never reached the server":         func(c *cutter) { c.before.Store(2) },
		"happened, but the answer is lost": func(c *cutter) { c.after.Store(2) },
		"both":                             func(c *cutter) { c.before.Store(1); c.after.Store(1) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newLog(t)
			appendN(t, d.DB, "Order", "1", 40)
			var c cutter
			arm(&c)
			w := start(t, c.open(t, d), []consumer.Consumer{&ledger{name: "all"}})
			awaitHandled(t, d.DB, "all", upTo(40)...)
			appendN(t, d.DB, "Order", "1", 10)
			awaitHandled(t, d.DB, "all", upTo(50)...)
			if c.before.Load() > 0 || c.after.Load() > 0 {
				t.Fatal("no COMMIT was cut")
			}
			if s := w.Status().Consumers[0]; s.Failures != 0 {
				t.Errorf("%d failures were counted against the handler", s.Failures)
			}
		})
	}
}
