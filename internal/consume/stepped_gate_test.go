package consume

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// thread is a goroutine of a loop.
type thread struct {
	stops chan *stop
	at    *stop           // nil: it runs, or is idle
	done  <-chan struct{} // closed when its work is done; nil: it has no work
	notes notes
	asked bool // it has stopped once before it took a connection

	ahead *readers        // the readers that read ahead for it; nil: it is one of them
	works *reader.Stretch // the stretch that it reads; nil: it does not read ahead
	read  bool            // the stretch's rows were read, without its missing positions
}

// stop is a point at which a thread waits to be resumed.
type stop struct {
	before string // the statement that it is about to run
	by     *thread
	conn   *pgx.Conn
	resume chan struct{}
}

type threadKey struct{}

// halt stops the thread until it is resumed.
func (t *thread) halt(ctx context.Context, before string, conn *pgx.Conn) {
	s := &stop{before, t, conn, make(chan struct{})}
	select {
	case t.stops <- s:
		select {
		case <-s.resume:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
}

// gate stops threads, and records every statement of a worker.
type gate struct {
	s *stage
	w *steppedWorker
}

type statementKey struct{}

func (gate) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	t, ok := ctx.Value(threadKey{}).(*thread)
	before := stopsBefore(q.SQL)
	switch {
	case !ok || before == "":
	case t.asked:
		t.asked = false
	default:
		t.halt(ctx, before, conn)
	}
	return context.WithValue(ctx, statementKey{}, statementName(q.SQL))
}

func (g gate) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	name, _ := ctx.Value(statementKey{}).(string)
	o := operation{Statement: name, Outcome: q.CommandTag.String()}
	if q.Err != nil {
		o.Outcome = errorText(q.Err)
	}
	if t, ok := ctx.Value(threadKey{}).(*thread); ok {
		o.Ahead = t.ahead == nil
		t.notes.add(statementRan, o)
		return
	}
	g.s.record(g.w.name, "", statementRan, o)
}

// stopsBefore returns the name of a statement that is a step of its own. Other statements
// run together with the one before.
func stopsBefore(sql string) string {
	sql = strings.TrimSpace(sql)
	switch {
	case sql == "commit":
		return "commit"
	case strings.HasPrefix(sql, "WITH limits"):
		return "guard"
	case strings.HasPrefix(sql, "SELECT coalesce((SELECT token"): // part of the read before it
		return ""
	case strings.HasPrefix(sql, "SELECT last_position"):
		return "load"
	case strings.HasPrefix(sql, "SELECT"), strings.HasPrefix(sql, "WITH"):
		return "read"
	default: // BEGIN, ROLLBACK, and the handlers' statements
		return ""
	}
}

// line is a connection of a worker that can lose an answer. If it is pooled, it behaves
// like a connection to a proxy that gives each transaction its own session. The server may
// then go away unnoticed between two transactions.
type line struct {
	net.Conn
	lose    atomic.Bool
	gone    atomic.Bool // the session has ended, and another one replaces it
	session func() (*pgconn.HijackedConn, error)
	backend uint32 // 0: the first

	mu   sync.Mutex // pgx continues to read a connection that it has given up
	tail []byte     // the last bytes that were read
}

// ready is the server's message at the end of a statement outside a transaction.
var ready = []byte{'Z', 0, 0, 0, 5, 'I'}

func (c *line) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.remember(b[:n])
	if c.lose.Load() {
		return 0, errors.Join(io.ErrUnexpectedEOF, c.Conn.Close())
	}
	return n, err
}

func (c *line) remember(read []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail = append(c.tail, read...)
	c.tail = c.tail[max(0, len(c.tail)-len(ready)):]
}

// free reports whether the connection is outside a transaction.
func (c *line) free() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Equal(c.tail, ready)
}

func (c *line) Write(b []byte) (int, error) {
	if c.gone.Load() {
		next, err := c.session()
		if err != nil {
			return 0, err
		}
		_ = c.Conn.Close()
		c.Conn, c.backend = next.Conn, next.PID
		c.gone.Store(false)
	}
	return c.Conn.Write(b)
}

func lineOf(conn *pgx.Conn) *line { return conn.PgConn().Conn().(*line) }

func backendOf(conn *pgx.Conn) uint32 {
	if c := lineOf(conn); c.backend != 0 {
		return c.backend
	}
	return conn.PgConn().PID()
}

// lines makes all connections of a worker lines.
func (s *stage) lines(w *steppedWorker, cfg *pgx.ConnConfig) {
	straight := cfg.Config.Copy()
	if s.script.pooled {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := straight.DialFunc(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &line{Conn: conn, session: func() (*pgconn.HijackedConn, error) {
			fresh, err := pgconn.ConnectConfig(s.ctx, straight)
			if err != nil {
				return nil, err
			}
			return fresh.Hijack()
		}}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lines = append(w.lines, c)
		return c, nil
	}
}

// outlive lets a worker's connections survive their sessions, if they are pooled and no
// transaction was open.
func (s *stage) outlive(w *steppedWorker) {
	if !s.script.pooled {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.lines {
		free := c.free()
		if c.gone.Store(free); free {
			s.saw("outlived")
		}
	}
}

// steppedLog distinguishes the readers. A loop reads on its own connection. Read-ahead uses
// the pool, and stops before it takes a connection. Otherwise the order in which concurrent
// loops take connections would depend on chance.
type steppedLog struct{ *storepostgres.Store }

func (l steppedLog) Bind(ctx context.Context, q store.Querier, incarnation string) (store.BoundLog, error) {
	bound, err := l.Store.Bind(ctx, q, incarnation)
	return steppedBound{l, bound}, err
}

func (l steppedLog) Binds(log store.Log) bool { return log == store.Log(l) }

type steppedBound struct {
	steppedLog
	bound store.BoundLog
}

func (l steppedBound) PositionColumn() (table, column string) {
	return l.bound.(store.SequenceNamer).PositionColumn()
}

func (l steppedBound) At(incarnation string) store.Log {
	return steppedLog{l.bound.At(incarnation).(*storepostgres.Store)}
}

func (l steppedLog) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	return l.Store.ReadEvents(asReader(ctx, q, "read"), q, after, limit)
}

func (l steppedLog) ReadSized(ctx context.Context, q store.Querier, after int64, limit, maxBytes int) ([]store.PersistedEvent, bool, error) {
	return l.Store.ReadSized(asReader(ctx, q, "read"), q, after, limit, maxBytes)
}

func (l steppedLog) ReadScoped(ctx context.Context, q store.Querier, r store.ScopedRange) (store.ScopedPage, error) {
	return l.Store.ReadScoped(asReader(ctx, q, "read"), q, r)
}

func (l steppedLog) CountMissing(ctx context.Context, q store.Querier, after, through int64) (store.Missing, error) {
	return l.Store.CountMissing(asReader(ctx, q, "count"), q, after, through)
}

func asReader(ctx context.Context, q store.Querier, before string) context.Context {
	t, ok := ctx.Value(threadKey{}).(*thread)
	if _, pool := q.(*readConn); !ok || !pool {
		return ctx
	}
	reader := &thread{stops: t.ahead.stops, asked: true}
	reader.halt(ctx, before, nil)
	return context.WithValue(ctx, threadKey{}, reader)
}
