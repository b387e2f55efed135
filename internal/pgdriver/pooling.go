package pgdriver

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/store"
)

// Pooling describes the proxy between a pool's connections and the server.
type Pooling struct {
	Pooled   bool // each transaction may run in another session
	PIDKnown bool // the driver receives the pid of the server's session
}

// ErrNoLimit reports that the pool takes its connections from a pgxpool.Pool without a limit of its
// own. A caller that does not know the limit uses all connections, and its own statements wait.
var ErrNoLimit = errors.New("db has its connections from a pgxpool.Pool (stdlib.OpenDBFromPool), which does not tell how many, and no limit of its own: make it with pgxtx.DB, or call db.SetMaxOpenConns with a number below the pool's MaxConns")

// CheckPooling refuses a pool over another pool without a limit, and everything that
// [CheckProxy] refuses. lent reports whether the connections belong to another pool, as
// [Pool.FindLender] does.
func (p Pool) CheckPooling(ctx context.Context, locks bool) (found Pooling, lent bool, err error) {
	if lent, err = p.FindLender(ctx); errors.Is(err, ErrNoLimit) {
		return found, lent, fmt.Errorf("%w: %w", refusal.ErrInvalidConfig, err)
	} else if err != nil {
		return found, lent, fmt.Errorf("take a connection: %w", err)
	}
	found, err = CheckProxy(ctx, p, locks)
	return found, lent, err
}

// CheckProxy refuses a transaction-pooling proxy that breaks prepared statements. If locks is
// set, it also refuses any such proxy, since session locks break.
func CheckProxy(ctx context.Context, db Pool, locks bool) (found Pooling, err error) {
	found, err = FindPooling(ctx, db)
	switch {
	case err != nil:
		err = fmt.Errorf("detect a proxy: %w", err)
	case found.Pooled && locks:
		err = refusal.ErrTransactionPooling
	case found.Pooled:
		err = TryStatements(ctx, db)
	}
	if IsMixedUp(err) {
		err = fmt.Errorf("%w: %v", refusal.ErrPreparedStatements, err) // %v, since its SQLSTATE would count as a lost connection
	}
	return found, err
}

// FindLender reports whether the connections belong to another pool of this process. It returns
// [ErrNoLimit] if only the other pool limits their number.
func (p Pool) FindLender(ctx context.Context) (lent bool, err error) {
	lent, err = p.isLent(ctx)
	if lent && p.Stats().MaxOpenConnections <= 0 {
		err = ErrNoLimit
	}
	return lent, err
}

// isLent reports whether a connection that p evicts comes back. It checks only if p has recently
// closed a connection. Over OpenDBFromPool, p closes one after each use, since p may keep none.
func (p Pool) isLent(ctx context.Context) (bool, error) {
	closed := p.Stats().MaxIdleClosed
	conn, err := p.Conn(ctx)
	if err != nil {
		return false, err
	}
	isPgx := pgxConn(conn) != nil
	_ = conn.Close() // no statement was executed on it
	if !isPgx || p.Stats().MaxIdleClosed == closed {
		return false, nil
	}
	const takes = 4 // other users of the other pool may be faster
	var gone []*pgx.Conn
	for range takes {
		if conn, err = p.Conn(ctx); err != nil {
			return false, err
		}
		pg := pgxConn(conn)
		evict(conn)
		if slices.Contains(gone, pg) {
			return true, nil
		}
		gone = append(gone, pg)
	}
	return false, nil
}

// FindPooling detects a transaction-pooling proxy by the sessions of two connections. Without a
// proxy, each connection keeps its session. A proxy gives both connections the session that was
// used last, or each in turn. Other users of the proxy may hide this pattern, so FindPooling
// queries several times.
//
// A proxy that does not change sessions is detected by the pids that it invents.
func FindPooling(ctx context.Context, db Pool) (Pooling, error) {
	var conns [2]*sql.Conn
	for i := range conns {
		conn, err := db.Conn(ctx)
		if err != nil {
			return Pooling{}, err
		}
		defer conn.Close()
		conns[i] = conn
	}
	var sessions [2]int64 // 0: unknown
	pidKnown := true
	for _, i := range []int{0, 0, 1, 1, 0, 1, 0, 0, 1} {
		var session int64
		err := queryRow(ctx, conns[i], `SELECT pg_backend_pid()`, nil, &session)
		switch {
		case IsMixedUp(err):
			return Pooling{Pooled: true}, nil
		case err != nil:
			return Pooling{}, err
		case session == sessions[1-i], sessions[i] != 0 && session != sessions[i]:
			return Pooling{Pooled: true}, nil
		}
		sessions[i] = session
		pidKnown = pidKnown && session == PID(conns[i])
	}
	return Pooling{PIDKnown: pidKnown}, nil
}

var (
	// errOtherStatement reports that the session had another statement of the same name.
	// PostgreSQL reports no error for this.
	errOtherStatement = errors.New("another prepared statement was executed")
	// errUnnamed reports that another client may replace the unnamed statement between its two
	// transactions.
	errUnnamed = errors.New("the driver prepares a statement without a name in one transaction, and executes it in the next")
)

// TryStatements reports an error if the driver's statements do not survive the proxy. They
// survive if they are parsed in the transaction that executes them. Otherwise the next session
// may have another statement, or none. A statement without a name then always fails at times,
// and an attempt would not always detect it. A statement with a name is tried, since some proxies
// track names. [IsMixedUp] reports whether the proxy caused the error.
func TryStatements(ctx context.Context, db Pool) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if together, err := parsesWhereItExecutes(ctx, conn); err != nil || together {
		return err
	}
	if named, err := namesStatements(ctx, conn); err != nil || !named {
		return cmp.Or(err, errUnnamed)
	}
	return tryTogether(ctx, db)
}

// parsesWhereItExecutes reports whether the driver parses and executes a statement in one
// transaction. The literal 'now' becomes the time of the transaction that parses it.
func parsesWhereItExecutes(ctx context.Context, conn *sql.Conn) (together bool, err error) {
	var n int
	err = queryRow(ctx, conn, `SELECT $1::int, 'now'::timestamptz = transaction_timestamp()`, []any{1}, &n, &together)
	return together, err
}

// namesStatements reports whether the driver names the statements that it prepares. A
// transaction stays in one session, and no other client sends this text.
func namesStatements(ctx context.Context, conn *sql.Conn) (named bool, err error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was changed
	err = queryRow(ctx, tx, fmt.Sprintf(`SELECT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements
		WHERE NOT from_sql AND pg_catalog.strpos(statement, 'asks for its own name, %d') > $1::int)`, rand.Int64()), []any{0}, &named)
	return named, err
}

// tryTogether executes a few equal statements on several connections at once.
func tryTogether(ctx context.Context, db Pool) error {
	const clients, rounds, statements = 4, 50, 3
	var wg sync.WaitGroup
	failures := make([]error, clients)
	for client := range clients {
		wg.Go(func() {
			for round := 0; round < rounds && failures[client] == nil; round++ {
				failures[client] = tryStatement(ctx, db, (client+round)%statements, client*rounds+round)
			}
		})
	}
	wg.Wait()
	if i := slices.IndexFunc(failures, IsMixedUp); i >= 0 {
		return failures[i]
	}
	return errtext.Join(failures...)
}

func tryStatement(ctx context.Context, db Pool, statement, value int) error {
	var sum int
	err := queryRow(ctx, db, fmt.Sprintf(`SELECT $1::int + %d`, statement), []any{value}, &sum)
	if err == nil && sum != value+statement {
		return errOtherStatement
	}
	return err
}

// queryRow reads one row. A driver that receives the row of another statement may panic.
func queryRow(ctx context.Context, on store.Querier, query string, args []any, dest ...any) (err error) {
	defer func() {
		if recover() != nil {
			err = errOtherStatement
		}
	}()
	return on.QueryRowContext(ctx, query, args...).Scan(dest...)
}

// IsMixedUp reports whether a prepared statement was missing, existed already or was another
// one. It includes statements for which this may happen at any time. A protocol violation
// counts only during [FindPooling] and [TryStatements]. PgBouncer also reports a dead server as
// a protocol violation.
func IsMixedUp(err error) bool {
	return IsLostStatement(err) || SQLState(err) == ProtocolViolation || errors.Is(err, errOtherStatement) || errors.Is(err, errUnnamed)
}

// IsLostStatement reports whether a prepared statement was missing or existed already: a proxy
// has changed the session.
func IsLostStatement(err error) bool {
	s := SQLState(err)
	return s == InvalidStatementName || s == DuplicateStatement
}
