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
}

const (
	// slowStatement is how long a statement takes at least that may have a wrong plan.
	slowStatement = 3 * time.Millisecond
	// slower is by how much it is slower than it was at its fastest. So a network that is
	// slow makes no plan wrong.
	slower = 5
	// planAnew is for how long statements are planned anew then.
	planAnew = 30 * time.Second
)

// took records how long a statement took.
func (p *Plans) took(query string, began, now time.Time) {
	took := int64(now.Sub(began))
	known, ok := p.fastest.Load(query)
	if !ok {
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
func (p *Plans) On(conn *sql.Conn, on store.Querier) store.Querier {
	q := planned{p: p, on: on}
	if p.anew(time.Now()) {
		_ = raw(conn, func(driverConn any) error { // a lost connection says so by itself
			if c, ok := driverConn.(*stdlib.Conn); ok && c.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
				q.mode = []any{pgx.QueryExecModeDescribeExec} // values in binary, as else: a text depends on the session
			}
			return nil
		})
	}
	return q
}

// planned sends statements, and records how long they take.
type planned struct {
	p    *Plans
	on   store.Querier
	mode []any // in front of the arguments, for pgx: plan anew; nil: keep the plan
}

func (q planned) args(args []any) []any {
	if q.mode == nil || len(args) == 0 { // without arguments there may be several statements
		return args
	}
	return append(q.mode[:1:1], args...)
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
