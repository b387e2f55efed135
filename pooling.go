package worker

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// ErrPreparedStatements: something between this worker and the server gives
// each transaction another session, and the driver prepares statements in one
// session that it executes in the next. They are missing there, or somebody
// else's.
var ErrPreparedStatements = errors.New("worker: the connection goes through a transaction-pooling proxy, which loses or mixes up the statements that this driver prepares: with pgx add default_query_exec_mode=exec to the connection string, with lib/pq binary_parameters=yes; or connect directly or with session pooling")

// checkPooling refuses what a transaction-pooling proxy breaks.
func (w *Worker) checkPooling(ctx context.Context) error {
	p, err := findPooling(ctx, w.db)
	w.pooling = p
	switch {
	case err != nil:
		return fmt.Errorf("worker: look for a proxy: %w", err)
	case p.pooled && w.cfg.LeaderStrategy == LeaderStrategyAdvisory:
		return coord.ErrTransactionPooling
	case p.pooled:
		return tryStatements(ctx, w.db)
	}
	return nil
}

// pooling is what stands between the worker and the server.
type pooling struct {
	pooled bool // each transaction may get another session
	told   bool // the driver is told the pid of the server's session
}

// findPooling finds a proxy by the sessions of two connections: without one,
// each keeps its own. A proxy gives both the session that was used last, or each
// in turns; it is asked several times, as others who use it may blur that.
// A proxy that leaves them their sessions shows by the pids that it makes up.
func findPooling(ctx context.Context, db *sql.DB) (pooling, error) {
	var conns [2]*sql.Conn
	for i := range conns {
		conn, err := db.Conn(ctx)
		if err != nil {
			return pooling{}, err
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
		case isMixedUp(err):
			return pooling{pooled: true}, nil
		case err != nil:
			return pooling{}, err
		case session == sessions[1-i], sessions[i] != 0 && session != sessions[i]:
			return pooling{pooled: true}, nil
		}
		sessions[i] = session
		told = told && session == pgdriver.PID(conns[i])
	}
	return pooling{told: told}, nil
}

// tryStatements has several connections execute the same few statements at the
// same time, which a proxy shows the driver's way with statements to stand or
// not.
func tryStatements(ctx context.Context, db *sql.DB) error {
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
	return errtext.Join(failures...)
}

func tryStatement(ctx context.Context, db *sql.DB, statement, value int) error {
	var sum int
	err := db.QueryRowContext(ctx, fmt.Sprintf(`SELECT $1::int + %d`, statement), value).Scan(&sum)
	switch {
	case err == nil && sum != value+statement:
		return fmt.Errorf("%w: another statement was executed", ErrPreparedStatements)
	case isMixedUp(err):
		return fmt.Errorf("%w: %w", ErrPreparedStatements, err)
	}
	return err
}

// isMixedUp recognises what PostgreSQL says of a prepared statement that is
// missing, there already, or another one.
func isMixedUp(err error) bool {
	switch pgdriver.SQLState(err) {
	case pgdriver.InvalidStatementName, pgdriver.DuplicateStatement, pgdriver.ProtocolViolation:
		return true
	}
	return false
}

// errStandby adds the remedy to the answer of a standby.
var errStandby = errors.New("worker: a connection leads to a standby: add target_session_attrs=read-write to the connection string, or name the primary only")

// explain adds the remedy to an error that a proxy causes which was not there
// at the start, and to that of a standby. Not to a protocol violation (08P01):
// that is also what PgBouncer calls a server that has died.
func explain(err error) error {
	if pgdriver.IsStandby(err) && !errors.Is(err, errStandby) {
		return fmt.Errorf("%w: %w", errStandby, err)
	}
	if s := pgdriver.SQLState(err); s != pgdriver.InvalidStatementName && s != pgdriver.DuplicateStatement || errors.Is(err, ErrPreparedStatements) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrPreparedStatements, err)
}
