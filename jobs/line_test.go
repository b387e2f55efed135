package jobs_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// line is the connection of one process to the database. After a cut the process counts as dead:
// the server sees its connections closed, and it opens no others.
type line struct {
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

var errCut = errors.New("the line is cut")

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.dead {
		conn.Close()
		err = errCut
	}
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for _, c := range l.conns {
		c.Close()
	}
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = false
}

// openLine opens a pool that can be cut.
func (s *stage) openLine(t *testing.T) (*sql.DB, *line) {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.d.URL)
	if err != nil {
		t.Fatal("the connection string cannot be parsed")
	}
	l := &line{}
	cfg.DialFunc = l.dial
	db := stdlib.OpenDB(*cfg)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { db.Close() })
	return db, l
}
