// Package refusal defines the errors of Start of a worker or a Scheduler that refuses to run.
// Each package with a Start exports these errors under the same names. So a program that runs
// several packages can compare with either.
package refusal

import "errors"

var (
	// ErrInvalidConfig reports that the configuration cannot work.
	ErrInvalidConfig = errors.New("invalid configuration")
	// ErrOutage reports that the database was away for longer than the program waits.
	ErrOutage = errors.New("the database fails for too long")
	// ErrStandby reports that the server is read-only.
	ErrStandby = errors.New("the server takes no writes: if it is a standby, add target_session_attrs=read-write to the connection string, or name the primary only; else RESET default_transaction_read_only of the role or the database")
	// ErrPrivileges reports that the role lacks privileges, or that row-level security hides
	// rows from it.
	ErrPrivileges = errors.New("the role lacks privileges")
	// ErrTransactionPooling reports a proxy that changes the session between transactions, so
	// that session locks have no effect.
	ErrTransactionPooling = errors.New("the connection goes through a transaction-pooling proxy, where session advisory locks do not hold: use WithLeaderStrategy(LeaderStrategyLease), or connect directly or with session pooling")
	// ErrPreparedStatements reports such a proxy, behind which the driver prepares statements
	// in one session and executes them in another.
	ErrPreparedStatements = errors.New("the session loses or mixes up the statements that this driver prepares: behind a transaction-pooling proxy, with pgx add default_query_exec_mode=exec to the connection string, with lib/pq binary_parameters=yes, or connect directly or with session pooling; without a proxy, remove DISCARD ALL and DEALLOCATE ALL from handlers and hooks of the pool")
)
