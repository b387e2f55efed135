// Package refusal defines the errors that tell why Start of a worker or of a Scheduler refused to
// run. Each package with a Start exports those that its Start returns, under the same names. So a
// program that runs several packages tells the reasons apart in one place.
package refusal

import "errors"

var (
	// ErrInvalidConfig: what the program was given cannot work.
	ErrInvalidConfig = errors.New("invalid configuration")
	// ErrOutage: the database was away for longer than the program waits.
	ErrOutage = errors.New("the database fails for too long")
	// ErrStandby: the server takes no writes.
	ErrStandby = errors.New("the server takes no writes: if it is a standby, add target_session_attrs=read-write to the connection string, or name the primary only; else RESET default_transaction_read_only of the role or the database")
	// ErrPrivileges: the role lacks privileges, or row-level security hides rows from it.
	ErrPrivileges = errors.New("the role lacks privileges")
	// ErrTransactionPooling: a proxy gives each transaction another session, so that a session's
	// locks protect nothing.
	ErrTransactionPooling = errors.New("the connection goes through a transaction-pooling proxy, where session advisory locks do not hold: use WithLeaderStrategy(LeaderStrategyLease), or connect directly or with session pooling")
	// ErrPreparedStatements: behind such a proxy, the driver prepares statements in one session
	// that it executes in the next.
	ErrPreparedStatements = errors.New("the connection goes through a transaction-pooling proxy, which loses or mixes up the statements that this driver prepares: with pgx add default_query_exec_mode=exec to the connection string, with lib/pq binary_parameters=yes; or connect directly or with session pooling")
)
