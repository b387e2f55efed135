package pgdriver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that callers tell apart.
const (
	FeatureNotSupported   = "0A000"
	ReadOnlyTransaction   = "25006"
	InFailedTransaction   = "25P02"
	DivisionByZero        = "22012"
	InsufficientPrivilege = "42501"
	IdleInTransaction     = "25P03" // idle_in_transaction_session_timeout
	TransactionTimeout    = "25P04"
	SerializationFailure  = "40001"
	DeadlockDetected      = "40P01"
	DiskFull              = "53100"
	OutOfMemory           = "53200"
	TooManyConnections    = "53300"
	IOError               = "58030"
	InvalidStatementName  = "26000"
	DuplicateStatement    = "42P05"
	ProtocolViolation     = "08P01"
	UniqueViolation       = "23505"
	UndefinedTable        = "42P01"
	UndefinedColumn       = "42703"
	QueryCanceled         = "57014" // statement_timeout, too
	LockNotAvailable      = "55P03" // lock_timeout

	statementFaults       = "42" // it is wrong, names what is not there, or the role may not execute it
	invalidValues         = "22"
	integrityViolations   = "23"
	connectionExceptions  = "08"
	operatorInterventions = "57P" // shutdown, crash, starting up, terminated
)

// SQLState returns the SQLSTATE that PostgreSQL answered with, as pgx and
// lib/pq both report it, or "".
func SQLState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// IsConflict reports whether PostgreSQL sacrificed the transaction for another
// one. Trying again is the remedy.
func IsConflict(err error) bool {
	s := SQLState(err)
	return s == SerializationFailure || s == DeadlockDetected
}

// conflicts is how often a statement is repeated.
const conflicts = 5

// Repeated calls f, which is to execute one statement outside of a transaction, again as long
// as PostgreSQL sacrifices it for another transaction. Where transactions are stricter than
// read committed by default, so is a statement alone: a row that another transaction has
// written since is then an error. Once that transaction has ended, the next try sees the row.
func Repeated(f func() error) (err error) {
	for range conflicts {
		if err = f(); !IsConflict(err) {
			break
		}
	}
	return err
}

// IsTransactionTimeout reports whether the server ended the transaction, and
// the connection, because it took too long.
func IsTransactionTimeout(err error) bool {
	s := SQLState(err)
	return s == IdleInTransaction || s == TransactionTimeout
}

// IsTimeLimit reports whether the server ended a statement, or a wait in it, because a
// setting of the session limits its time. An operator's pg_cancel_backend looks the same.
func IsTimeLimit(err error) bool {
	s := SQLState(err)
	return s == QueryCanceled || s == LockNotAvailable || s == TransactionTimeout
}

// IsOutOfResources reports whether the server lacked memory or could not read
// or write a file, which may be over in a moment.
func IsOutOfResources(err error) bool {
	s := SQLState(err)
	return s == OutOfMemory || s == IOError
}

// IsOfStatement reports whether a SQLSTATE says that a statement is wrong, names what is not there,
// or may not be executed by the role. The values that it was given are not to blame.
func IsOfStatement(state string) bool { return strings.HasPrefix(state, statementFaults) }

// IsInvalidValue reports whether the server did not like a value, such as a zero
// byte in a text.
func IsInvalidValue(err error) bool { return strings.HasPrefix(SQLState(err), invalidValues) }

// IsIntegrityViolation reports whether a constraint refused what was to be written.
func IsIntegrityViolation(err error) bool {
	return strings.HasPrefix(SQLState(err), integrityViolations)
}

// IsRowSecurity reports whether a policy refused a row that was to be written. A privilege
// that lacks has the same SQLSTATE, and the messages are translated.
func IsRowSecurity(err error) bool {
	const routine = "ExecWithCheckOptions"
	var pgx *pgconn.PgError
	var pq interface{ Get(field byte) string }
	switch {
	case SQLState(err) != InsufficientPrivilege:
		return false
	case errors.As(err, &pgx):
		return pgx.Routine == routine
	}
	return errors.As(err, &pq) && pq.Get('R') == routine
}

// Fault is what made a statement about several rows fail.
type Fault int

const (
	FaultServer    Fault = iota // the connection, the server or another transaction: no row
	FaultStatement              // the whole statement, or what a trigger or a function did for one row
	FaultRow                    // one of the rows
)

// FaultOf returns what made a statement about several rows fail. It knows no state of the
// server, only the SQLSTATE: a table that lacks may be one of the statement, or one that a
// trigger writes to for one of the rows. Without an error it returns FaultServer.
func FaultOf(err error) Fault {
	s := SQLState(err)
	switch {
	case len(s) != 5, IsLostStatement(err), s == ReadOnlyTransaction:
		return FaultServer
	case IsRowSecurity(err):
		return FaultRow
	case s == QueryCanceled:
		return FaultStatement
	}
	switch class := s[:2]; class {
	case "08", "25", "26", "28", "3D", "40", "53", "57", "58", "F0":
		return FaultServer
	case "09", "21", "22", "23", "27", "38", "39", "44", "54":
		return FaultRow
	case "HV", "XX":
		return FaultStatement
	default:
		if class[0] >= 'I' { // SQL leaves these classes to others: a trigger may raise them
			return FaultRow
		}
	}
	return FaultStatement
}

// IsUndefined reports whether a table or a column is not there.
func IsUndefined(err error) bool {
	s := SQLState(err)
	return s == UndefinedTable || s == UndefinedColumn
}

// IsUnanswered reports whether an error of a COMMIT leaves open whether it
// happened: there was no answer, or that of a server which is going down.
func IsUnanswered(err error) bool {
	s := SQLState(err)
	return s == "" || strings.HasPrefix(s, connectionExceptions) || strings.HasPrefix(s, operatorInterventions)
}

// Violation returns the name of the constraint that err is about, and the
// server's words for it.
func Violation(err error) (constraint, detail string) {
	var pgx *pgconn.PgError
	var pq interface{ Get(field byte) string } // lib/pq: the protocol's field codes
	switch {
	case errors.As(err, &pgx):
		return pgx.ConstraintName, pgx.Detail
	case errors.As(err, &pq):
		return pq.Get('n'), pq.Get('D')
	}
	return "", ""
}

// IsConnectionLoss reports whether the connection or the server went away.
func IsConnectionLoss(err error) bool {
	switch s := SQLState(err); {
	case strings.HasPrefix(s, connectionExceptions), strings.HasPrefix(s, operatorInterventions), s == TooManyConnections:
		return true
	case s != "":
		return false
	}
	var netErr net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &netErr) && !errors.Is(err, context.DeadlineExceeded)
}

// CutOff adds to an error why ctx has ended, if it has and the error does not say so: of a
// statement that this cuts off, some drivers say only that it was canceled, or that the
// connection is bad.
func CutOff(ctx context.Context, err error) error {
	why := context.Cause(ctx)
	if err == nil || why == nil || errors.Is(err, why) {
		return err
	}
	return fmt.Errorf("%w: %w", why, err)
}

// errPoolClosed is what database/sql answers once a pool is closed. It does not export
// the error, so a pool without a database says it.
var errPoolClosed = func() error {
	db := sql.OpenDB(nowhere{})
	_ = db.Close()
	return db.Ping()
}()

// nowhere connects to no database.
type nowhere struct{ driver.Connector }

// IsPoolClosed reports whether somebody has closed the pool that was asked.
func IsPoolClosed(err error) bool { return err != nil && errors.Is(err, errPoolClosed) }

// IsStandby reports whether a server answered that cannot do what only a
// primary can: write, or read an UNLOGGED table.
func IsStandby(err error) bool {
	s := SQLState(err)
	return s == ReadOnlyTransaction || s == FeatureNotSupported
}

// IsRolledBack reports whether PostgreSQL answered a COMMIT with ROLLBACK.
func IsRolledBack(err error) bool {
	return errors.Is(err, pgx.ErrTxCommitRollback) || strings.Contains(err.Error(), "in a failed transaction")
}

// IsNotSent reports whether an error of a COMMIT shows for certain that it was
// not sent, since there was no transaction any more.
func IsNotSent(err error) bool {
	// The second is lib/pq's, which looks before it sends. What it may find
	// after a COMMIT is another state.
	return errors.Is(err, sql.ErrTxDone) || err.Error() == "pq: unexpected transaction status idle"
}

// IsRefused reports whether PostgreSQL answered a COMMIT in a way that shows
// for certain that it committed nothing.
func IsRefused(err error) bool {
	s := SQLState(err)
	return IsRolledBack(err) || IsConflict(err) || s == IdleInTransaction || IsIntegrityViolation(err)
}
