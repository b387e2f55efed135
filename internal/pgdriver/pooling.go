package pgdriver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pgfrontier/worker/internal/errtext"
)

// Pooling is what stands between a pool's connections and the server.
type Pooling struct {
	Pooled bool // each transaction may get another session
	Told   bool // the driver is told the pid of the server's session
}

// FindPooling finds a transaction-pooling proxy by the sessions of two
// connections. Without a proxy, each keeps its own. A proxy gives both the
// session that was used last, or each in turns. FindPooling asks several times,
// since others who use the proxy may blur that.
//
// A proxy that leaves them their sessions shows by the pids that it makes up.
func FindPooling(ctx context.Context, db *sql.DB) (Pooling, error) {
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
		err := conns[i].QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&session)
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

// errOtherStatement: PostgreSQL reports nothing when the session has another
// statement of the same name.
var errOtherStatement = errors.New("another prepared statement was executed")

// TryStatements finds out whether the driver's prepared statements survive the
// proxy: several connections execute the same few statements at the same time.
// [IsMixedUp] reports whether it was the proxy that failed.
func TryStatements(ctx context.Context, db *sql.DB) error {
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

func tryStatement(ctx context.Context, db *sql.DB, statement, value int) error {
	var sum int
	err := db.QueryRowContext(ctx, fmt.Sprintf(`SELECT $1::int + %d`, statement), value).Scan(&sum)
	if err == nil && sum != value+statement {
		return errOtherStatement
	}
	return err
}

// IsMixedUp reports whether a prepared statement was missing, there already, or
// another one. A protocol violation means that only while [FindPooling] and
// [TryStatements] ask: PgBouncer also calls a server that has died so.
func IsMixedUp(err error) bool {
	return IsLostStatement(err) || SQLState(err) == ProtocolViolation || errors.Is(err, errOtherStatement)
}

// IsLostStatement reports whether a prepared statement was missing or there
// already: a proxy has given the driver another session.
func IsLostStatement(err error) bool {
	s := SQLState(err)
	return s == InvalidStatementName || s == DuplicateStatement
}
