package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// ErrTransactionPooling: something between this worker and the server gives each
// transaction another session, so that a session's locks protect nothing. Use
// [LeaderStrategyLease], or connect directly or with session pooling.
var ErrTransactionPooling = coord.ErrTransactionPooling

// ErrPreparedStatements: something between this worker and the server gives
// each transaction another session, and the driver prepares statements in one
// session that it executes in the next. They are missing there, or somebody
// else's.
var ErrPreparedStatements = errors.New("worker: the connection goes through a transaction-pooling proxy, which loses or mixes up the statements that this driver prepares: with pgx add default_query_exec_mode=exec to the connection string, with lib/pq binary_parameters=yes; or connect directly or with session pooling")

// checkPooling refuses what a transaction-pooling proxy breaks, and a pool within a pool.
func (w *Worker) checkPooling(ctx context.Context) (err error) {
	if w.lent, err = w.db.FindLender(ctx); errors.Is(err, pgdriver.ErrNoLimit) {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	} else if err != nil {
		return fmt.Errorf("worker: take a connection: %w", err)
	}
	p, err := pgdriver.FindPooling(ctx, w.db)
	w.pooling = p
	switch {
	case err != nil:
		return fmt.Errorf("worker: look for a proxy: %w", err)
	case p.Pooled && w.cfg.LeaderStrategy == LeaderStrategyAdvisory:
		return ErrTransactionPooling
	case p.Pooled:
		err = pgdriver.TryStatements(ctx, w.db)
	}
	if pgdriver.IsMixedUp(err) {
		return fmt.Errorf("%w: %v", ErrPreparedStatements, err) // its SQLSTATE is that of a lost connection
	}
	return err
}

// errStandby adds the remedy to the answer of a standby.
var errStandby = errors.New("worker: the server takes no writes: if a connection leads to a standby, add target_session_attrs=read-write to the connection string, or name the primary only; else RESET default_transaction_read_only of the role or the database")

// explain adds the remedy to an error that a proxy causes which was not there
// at the start, and to that of a standby. Not to a protocol violation (08P01):
// that is also what PgBouncer calls a server that has died.
func explain(err error) error {
	if pgdriver.IsStandby(err) && !errors.Is(err, errStandby) {
		return fmt.Errorf("%w: %w", errStandby, err)
	}
	if !pgdriver.IsLostStatement(err) || errors.Is(err, ErrPreparedStatements) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrPreparedStatements, err)
}
