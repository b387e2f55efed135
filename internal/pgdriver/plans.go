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

// Plans replans statements whose kept plan has become wrong. A session keeps the plan of a
// prepared statement until the table is analyzed. A plan from when the table was small scans
// the whole table each time, even after it has grown. So when slow executions have lost more than
// maxExcess, Plans makes each execution plan the statement again for a while. Planning costs the
// server up to a millisecond, which is longer than most executions. So a single execution of a busy
// server, or one with a short wait for a lock, causes no replanning.
//
// Only pgx keeps prepared statements automatically, in its default mode. Plans is safe for
// concurrent use. The zero value is ready.
type Plans struct {
	known atomic.Int64 // approximate number of texts
	texts sync.Map     // *text, by statement
}

// origin is the zero of text.until. Differences to origin use the monotonic clock.
var origin = time.Now()

// text is the record of a statement. Times are in nanoseconds.
type text struct {
	fastest atomic.Int64
	until   atomic.Int64 // time from which on its plan is kept again, since origin
	excess  atomic.Int64 // the time of slow executions beyond the fastest, less the planning that others have saved
}

const (
	// slowStatement is the minimum duration of a statement whose plan may be wrong.
	slowStatement = 3 * time.Millisecond
	// slower is the minimum factor between a slow execution and the fastest one. So a slow
	// network does not cause replanning.
	slower = 5
	// maxExcess is the excess from which on the statement is replanned. planning is what an
	// execution that is not slow has saved.
	maxExcess, planning = 300 * time.Millisecond, time.Millisecond
	// replanFor is for how long each execution then plans the statement again, as a multiple of the
	// excess. longestReplan is its maximum. After that time, the first slow execution suffices. So
	// tests of a wrong plan take little of the time.
	replanFor, longestReplan = 10, 30 * time.Second
	// A user's log may make a new text for each read. Texts longer than longestText are not
	// watched. Above mostTexts, all records are dropped.
	mostTexts, longestText = 1000, 1 << 15
)

// took records how long a statement took until its first row. replanned says whether this
// included planning. A failed execution does not count as the fastest.
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
	case slow && replanned && err == nil: // its plan is not the cause; a slow network may be
		t.fastest.CompareAndSwap(fastest, min(nanos, 2*fastest))
	case slow:
		if excess := t.excess.Add(nanos - fastest); excess >= int64(maxExcess) {
			t.excess.Store(int64(maxExcess))
			t.until.Store(int64(now.Sub(origin) + min(replanFor*time.Duration(excess), longestReplan)))
		}
	case err == nil:
		if excess := t.excess.Load(); excess > 0 && !replanned {
			t.excess.CompareAndSwap(excess, excess-int64(planning))
		}
		if nanos < fastest {
			t.fastest.CompareAndSwap(fastest, nanos) // or a concurrent execution was as fast
		}
	}
}

func (p *Plans) text(query string) *text {
	t, _ := p.texts.Load(query)
	known, _ := t.(*text)
	return known
}

// replans reports whether an execution must plan the statement again.
func (p *Plans) replans(query string, now time.Time) bool {
	t := p.text(query)
	return t != nil && int64(now.Sub(origin)) < t.until.Load()
}

// On returns a Querier that sends statements through on, which is conn or its transaction. A nil
// *Plans returns on.
func (p *Plans) On(conn *sql.Conn, on store.Querier) store.Querier {
	if p == nil {
		return on
	}
	return planned{p, on, sync.OnceValue(func() bool { return keepsPlans(conn) })}
}

// Conn is [Plans.On] for a connection on which transactions may begin. Statements of these
// transactions are not watched.
func (p *Plans) Conn(conn *sql.Conn) Conn { return Conn{p.On(conn, conn), conn} }

// Conn is a connection whose statements are watched by a Plans.
type Conn struct {
	store.Querier
	conn *sql.Conn
}

// BeginTx is [sql.Conn.BeginTx].
func (c Conn) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return c.conn.BeginTx(ctx, opts)
}

// planned sends statements and records their durations.
type planned struct {
	p     *Plans
	on    store.Querier
	keeps func() bool // reports whether the driver keeps plans
}

// keepsPlans reports whether the driver keeps prepared statements automatically, and can
// execute a statement without.
func keepsPlans(conn *sql.Conn) (keeps bool) {
	_ = Raw(conn, func(driverConn any) error { // a lost connection reports its error later
		if c, ok := driverConn.(*stdlib.Conn); ok {
			config := c.Conn().Config()
			keeps = config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && config.DescriptionCacheCapacity > 0
		}
		return nil
	})
	return keeps
}

// begin returns the arguments and a function to call at the end of the statement. If the
// statement must be replanned, the arguments include a mode of pgx that plans it again.
//
// The mode sends the whole statement in one message sequence, as a proxy requires. It keeps
// binary values, since the text formats depend on the session.
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
