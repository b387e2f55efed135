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
// small, it reads all of a table that has grown since, each time. So once a statement
// was slow, each execution plans it again, for a while. That costs the server less than a
// millisecond, where it may save a hundred.
//
// Only pgx keeps prepared statements by itself, in its default mode. Any number of goroutines
// may use Plans. The zero value is ready.
type Plans struct {
	known atomic.Int64 // how many texts there are, about
	texts sync.Map     // *text, by statement
}

// origin is that of text.until: a difference keeps to the monotonic clock.
var origin = time.Now()

// text is what is known of a statement. Times are in nanoseconds.
type text struct {
	fastest atomic.Int64
	until   atomic.Int64 // when its plan is kept again, since origin
}

const (
	// slowStatement is how long a statement takes at least that may have a wrong plan.
	slowStatement = 3 * time.Millisecond
	// slower is by how much it is slower than it was at its fastest. So a network that is
	// slow makes no plan wrong.
	slower = 5
	// replanFor is for how long each execution plans the statement again then.
	replanFor = 30 * time.Second
	// A user's log may make a new text for each read. What is longer is not watched, and of
	// more nothing is known any more.
	mostTexts, longestText = 1000, 1 << 15
)

// took records how long a statement took until its first row, and whether that included
// planning it. An error says nothing about how fast it can be.
func (p *Plans) took(query string, took time.Duration, now time.Time, replanned bool, err error) {
	nanos := max(int64(took), 1)
	t := p.text(query)
	if t == nil {
		if err != nil || len(query) > longestText {
			return
		}
		if p.known.Add(1) > mostTexts {
			p.texts.Clear()
			p.known.Store(0)
		}
		t = new(text)
		t.fastest.Store(nanos)
		p.texts.Store(query, t)
		return
	}
	fastest := t.fastest.Load()
	slow := took >= slowStatement && nanos >= slower*fastest
	switch {
	case slow && replanned && err == nil: // its plan is not the reason
		t.fastest.CompareAndSwap(fastest, nanos)
	case slow:
		t.until.Store(int64(now.Sub(origin) + replanFor))
	case nanos < fastest && err == nil:
		t.fastest.CompareAndSwap(fastest, nanos) // or another was as fast
	}
}

func (p *Plans) text(query string) *text {
	t, _ := p.texts.Load(query)
	known, _ := t.(*text)
	return known
}

// replans reports whether an execution plans the statement again.
func (p *Plans) replans(query string, now time.Time) bool {
	t := p.text(query)
	return t != nil && int64(now.Sub(origin)) < t.until.Load()
}

// On returns a Querier that sends statements through on, which is conn or its transaction.
func (p *Plans) On(conn *sql.Conn, on store.Querier) store.Querier {
	return planned{p, on, sync.OnceValue(func() bool { return keepsPlans(conn) })}
}

// Conn is [Plans.On] for a connection on which transactions may begin. Their statements are
// sent as they are.
func (p *Plans) Conn(conn *sql.Conn) Conn { return Conn{p.On(conn, conn), conn} }

// Conn is a connection that keeps no wrong plans.
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
	p     *Plans
	on    store.Querier
	keeps func() bool // whether the driver keeps plans
}

// keepsPlans reports whether the driver keeps prepared statements by itself, and can do without.
func keepsPlans(conn *sql.Conn) (keeps bool) {
	_ = raw(conn, func(driverConn any) error { // a lost connection says so by itself
		if c, ok := driverConn.(*stdlib.Conn); ok {
			config := c.Conn().Config()
			keeps = config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && config.DescriptionCacheCapacity > 0
		}
		return nil
	})
	return keeps
}

// begin returns the arguments, with what makes pgx plan the statement again if that is due, and
// what to call at its end.
//
// The mode is one that sends all of a statement in one go, as a proxy demands, and values in
// binary, as else: a text depends on the session.
func (q planned) begin(query string, args []any) (with []any, end func(error)) {
	start := time.Now()
	replan := q.p.replans(query, start) && q.keeps()
	if replan {
		args = append([]any{pgx.QueryExecModeCacheDescribe}, args...)
	}
	return args, func(err error) { q.p.took(query, time.Since(start), time.Now(), replan, err) }
}

func (q planned) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	args, end := q.begin(query, args)
	result, err := q.on.ExecContext(ctx, query, args...)
	end(err)
	return result, err
}

func (q planned) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	args, end := q.begin(query, args)
	rows, err := q.on.QueryContext(ctx, query, args...)
	end(err)
	return rows, err
}

func (q planned) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	args, end := q.begin(query, args)
	row := q.on.QueryRowContext(ctx, query, args...)
	end(row.Err())
	return row
}
