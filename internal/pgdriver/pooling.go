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

// Pooling is what stands between a pool's connections and the server.
type Pooling struct {
	Pooled bool // each transaction may get another session
	Told   bool // the driver is told the pid of the server's session
}

// ErrNoLimit: the pool has its connections from a pgxpool.Pool. A worker that does not know how
// many there are takes all of them for handlers, and its own heartbeats wait.
var ErrNoLimit = errors.New("db has its connections from a pgxpool.Pool (stdlib.OpenDBFromPool), which does not tell how many, and no limit of its own: call db.SetMaxOpenConns with a number below the pool's MaxConns")

// CheckPooling refuses a pool within a pool that has no limit, and what [CheckProxy] refuses. It also
// reports whether the connections are those of another pool, as [Pool.FindLender] does.
func (p Pool) CheckPooling(ctx context.Context, locks bool) (found Pooling, lent bool, err error) {
	if lent, err = p.FindLender(ctx); errors.Is(err, ErrNoLimit) {
		return found, lent, fmt.Errorf("%w: %w", refusal.ErrInvalidConfig, err)
	} else if err != nil {
		return found, lent, fmt.Errorf("take a connection: %w", err)
	}
	found, err = CheckProxy(ctx, p, locks)
	return found, lent, err
}

// CheckProxy refuses what a transaction-pooling proxy breaks: prepared statements, and session locks
// if the caller holds some.
func CheckProxy(ctx context.Context, db Pool, locks bool) (found Pooling, err error) {
	found, err = FindPooling(ctx, db)
	switch {
	case err != nil:
		err = fmt.Errorf("look for a proxy: %w", err)
	case found.Pooled && locks:
		err = refusal.ErrTransactionPooling
	case found.Pooled:
		err = TryStatements(ctx, db)
	}
	if IsMixedUp(err) {
		err = fmt.Errorf("%w: %v", refusal.ErrPreparedStatements, err) // its SQLSTATE is that of a lost connection
	}
	return found, err
}

// FindLender reports whether the connections are those of another pool of this process. It fails
// with [ErrNoLimit] if that alone bounds how many there are.
func (p Pool) FindLender(ctx context.Context) (lent bool, err error) {
	lent, err = p.isLent(ctx)
	if lent && p.Stats().MaxOpenConnections <= 0 {
		err = ErrNoLimit
	}
	return lent, err
}

// isLent looks whether a connection that p gives up comes again. It does so only where p has closed one
// lately, as it does after each use over OpenDBFromPool, which lets it keep none.
func (p Pool) isLent(ctx context.Context) (bool, error) {
	closed := p.Stats().MaxIdleClosed
	conn, err := p.Conn(ctx)
	if err != nil {
		return false, err
	}
	isPgx := pgxConn(conn) != nil
	_ = conn.Close() // nothing has run on it
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
		giveUp(conn)
		if slices.Contains(gone, pg) {
			return true, nil
		}
		gone = append(gone, pg)
	}
	return false, nil
}

// FindPooling finds a transaction-pooling proxy by the sessions of two
// connections. Without a proxy, each keeps its own. A proxy gives both the
// session that was used last, or each in turns. FindPooling asks several times,
// since others who use the proxy may blur that.
//
// A proxy that leaves them their sessions shows by the pids that it makes up.
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
	var sessions [2]int64 // 0: not known yet
	told := true
	for _, i := range []int{0, 0, 1, 1, 0, 1, 0, 0, 1} {
		var session int64
		err := ask(ctx, conns[i], `SELECT pg_backend_pid()`, nil, &session)
		switch {
		case IsMixedUp(err):
			return Pooling{Pooled: true}, nil
		case err != nil:
			return Pooling{}, err
		case session == sessions[1-i], sessions[i] != 0 && session != sessions[i]:
			return Pooling{Pooled: true}, nil
		}
		sessions[i] = session
		told = told && session == PID(conns[i])
	}
	return Pooling{Told: told}, nil
}

var (
	// errOtherStatement: PostgreSQL reports nothing when the session has another
	// statement of the same name.
	errOtherStatement = errors.New("another prepared statement was executed")
	// errUnnamed: between its two transactions another client may put its own statement.
	errUnnamed = errors.New("the driver prepares a statement without a name in one transaction, and executes it in the next")
)

// TryStatements finds out whether the driver's statements survive the proxy. They do if
// they are parsed in the transaction that executes them. If not, the next session may
// have another statement, or none. Without a name that cannot be helped; a trial would
// miss it now and then. With a name it can: some proxies know the names. [IsMixedUp]
// reports whether it was the proxy that failed.
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

// parsesWhereItExecutes reports whether the driver sends a statement and its parameters in
// one transaction. The literal 'now' becomes the time of the transaction that parses it.
func parsesWhereItExecutes(ctx context.Context, conn *sql.Conn) (together bool, err error) {
	var n int
	err = ask(ctx, conn, `SELECT $1::int, 'now'::timestamptz = transaction_timestamp()`, []any{1}, &n, &together)
	return together, err
}

// namesStatements reports whether the driver gives names to the statements that it
// prepares. A transaction stays on one session, and nobody else sends this text.
func namesStatements(ctx context.Context, conn *sql.Conn) (named bool, err error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was changed
	err = ask(ctx, tx, fmt.Sprintf(`SELECT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements
		WHERE NOT from_sql AND pg_catalog.strpos(statement, 'asks for its own name, %d') > $1::int)`, rand.Int64()), []any{0}, &named)
	return named, err
}

// tryTogether executes the same few statements on several connections at the same time.
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
	err := ask(ctx, db, fmt.Sprintf(`SELECT $1::int + %d`, statement), []any{value}, &sum)
	if err == nil && sum != value+statement {
		return errOtherStatement
	}
	return err
}

// ask reads one row. A driver that is given the row of another statement may panic.
func ask(ctx context.Context, on store.Querier, query string, args []any, dest ...any) (err error) {
	defer func() {
		if recover() != nil {
			err = errOtherStatement
		}
	}()
	return on.QueryRowContext(ctx, query, args...).Scan(dest...)
}

// IsMixedUp reports whether a prepared statement was missing, there already, or
// another one, or may be at any time. A protocol violation means that only while [FindPooling] and
// [TryStatements] ask: PgBouncer also calls a server that has died so.
func IsMixedUp(err error) bool {
	return IsLostStatement(err) || SQLState(err) == ProtocolViolation || errors.Is(err, errOtherStatement) || errors.Is(err, errUnnamed)
}

// IsLostStatement reports whether a prepared statement was missing or there
// already: a proxy has given the driver another session.
func IsLostStatement(err error) bool {
	s := SQLState(err)
	return s == InvalidStatementName || s == DuplicateStatement
}
