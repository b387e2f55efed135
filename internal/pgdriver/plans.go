package pgdriver

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/store"
)

// Plans keeps statements from plans that have become wrong. A session keeps the plan of a
// prepared statement until the table is analyzed. If that was made while the table was
// small, it reads all of a table that has grown since, in each statement. So once a statement
// was slow, the next ones are planned anew, for a while. That costs the server less than a millisecond,
// where it may save a hundred.
//
// Only pgx keeps prepared statements by itself, in its default mode. Any number of goroutines
// may use Plans. The zero value is ready.
type Plans struct {
	until   atomic.Int64 // when plans are kept again, in Unix nanoseconds
	fastest sync.Map     // by statement: *atomic.Int64, in nanoseconds
	known   atomic.Int64 // how many those are, at least
}

const (
	// slowStatement is how long a statement takes at least that may have a wrong plan.
	slowStatement = 3 * time.Millisecond
	// slower is by how much it is slower than it was at its fastest. So a network that is
	// slow makes no plan wrong.
	slower = 5
	// mostStatements bounds what is known: a user's log may make a new text for each read.
	mostStatements = 1000
	// planAnew is for how long statements are planned anew then.
	planAnew = 30 * time.Second
)

// took records how long a statement took.
func (p *Plans) took(query string, began, now time.Time) {
	took := int64(now.Sub(began))
	known, ok := p.fastest.Load(query)
	if !ok {
		if p.known.Add(1) > mostStatements {
			return
		}
		known, _ = p.fastest.LoadOrStore(query, new(atomic.Int64))
	}
	fastest := known.(*atomic.Int64)
	before := fastest.Load()
	for ; before == 0 || took < before; before = fastest.Load() {
		if fastest.CompareAndSwap(before, max(took, 1)) {
			return // it was never faster
		}
	}
	if took >= int64(slowStatement) && took >= slower*before {
		p.until.Store(now.Add(planAnew).UnixNano())
	}
}

// anew reports whether statements are planned anew.
func (p *Plans) anew(now time.Time) bool { return now.UnixNano() < p.until.Load() }

// On returns a Querier that sends statements through on, which is conn or its transaction.
// The statements must give the type of each parameter, as in $1::text.
func (p *Plans) On(conn *sql.Conn, on store.Querier) store.Querier { return planned{p, conn, on} }

// Conn is [Plans.On] for a connection on which transactions are begun, too. Their statements
// are not recorded.
func (p *Plans) Conn(conn *sql.Conn) Conn { return Conn{p.On(conn, conn), conn} }

// Conn is a connection whose plans are watched.
type Conn struct {
	store.Querier
	conn *sql.Conn
}

// BeginTx is that of [sql.Conn].
func (c Conn) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return c.conn.BeginTx(ctx, opts)
}

// planned sends statements, and records how long they take.
type planned struct {
	p    *Plans
	conn *sql.Conn
	on   store.Querier
}

// args puts in front of the arguments what has pgx plan a statement anew, if that is due.
func (q planned) args(args []any) []any {
	if len(args) == 0 || !q.p.anew(time.Now()) || !keepsPlans(q.conn) { // without arguments there may be several statements
		return args
	}
	return append([]any{pgx.QueryExecModeDescribeExec}, args...) // values in binary, as else: a text depends on the session
}

// keepsPlans reports whether the driver keeps prepared statements by itself.
func keepsPlans(conn *sql.Conn) (keeps bool) {
	_ = raw(conn, func(driverConn any) error { // a lost connection says so by itself
		c, ok := driverConn.(*stdlib.Conn)
		keeps = ok && c.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
		return nil
	})
	return keeps
}

func (q planned) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	defer func(began time.Time) { q.p.took(query, began, time.Now()) }(time.Now())
	return q.on.ExecContext(ctx, query, q.args(args)...)
}

func (q planned) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	defer func(began time.Time) { q.p.took(query, began, time.Now()) }(time.Now())
	return q.on.QueryContext(ctx, query, q.args(args)...)
}

func (q planned) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	defer func(began time.Time) { q.p.took(query, began, time.Now()) }(time.Now())
	return q.on.QueryRowContext(ctx, query, q.args(args)...)
}
