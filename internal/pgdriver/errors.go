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

// The SQLSTATEs that callers tell apart.
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
	CheckViolation        = "23514"
	UndefinedTable        = "42P01"
	UndefinedColumn       = "42703"
	UndefinedFunction     = "42883" // or operator
	NoConflictTarget      = "42P10" // no unique index fits an ON CONFLICT
	QueryCanceled         = "57014" // also of statement_timeout
	LockNotAvailable      = "55P03" // lock_timeout

	statementFaults       = "42" // the statement is wrong, names a missing object, or needs a privilege
	invalidValues         = "22"
	integrityViolations   = "23"
	connectionExceptions  = "08"
	operatorInterventions = "57P" // shutdown, crash, starting up, terminated
)

// SQLState returns the SQLSTATE of PostgreSQL's answer, from pgx or lib/pq. It returns "" for
// any other error.
func SQLState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// IsConflict reports whether PostgreSQL aborted the transaction because of a concurrent one.
// The remedy is to try again.
func IsConflict(err error) bool {
	s := SQLState(err)
	return s == SerializationFailure || s == DeadlockDetected
}

// conflicts is how often a statement is executed at most.
const conflicts = 5

// Repeated calls f again while PostgreSQL aborts it because of a concurrent transaction. f
// executes one statement, or a whole transaction. If the default isolation is stricter than
// read committed, a row that a concurrent transaction has written is an error. After the end of
// that transaction, the next try sees the row.
func Repeated(f func() error) (err error) {
	for range conflicts {
		if err = f(); !IsConflict(err) {
			break
		}
	}
	return err
}

// ErrTxAborted reports a handler that went on after a statement had aborted its transaction.
var ErrTxAborted = errors.New("a statement of the handler has failed and aborted the transaction, and the handler went on: return the error of that statement, or guard the statement by a savepoint")

// IsTransactionTimeout reports whether the server ended the transaction and the connection
// because of a time limit.
func IsTransactionTimeout(err error) bool {
	s := SQLState(err)
	return s == IdleInTransaction || s == TransactionTimeout
}

// IsTimeLimit reports whether a time limit of the session ended a statement or a wait for a
// lock. An operator's pg_cancel_backend has the same SQLSTATE.
func IsTimeLimit(err error) bool {
	s := SQLState(err)
	return s == QueryCanceled || s == LockNotAvailable || s == TransactionTimeout
}

// IsOutOfResources reports whether the server was out of memory or could not read or write a
// file. Either may be temporary.
func IsOutOfResources(err error) bool {
	s := SQLState(err)
	return s == OutOfMemory || s == IOError
}

// IsOfStatement reports whether a SQLSTATE blames the statement: it is wrong, names a missing
// object, or needs a privilege. The arguments are not at fault.
func IsOfStatement(state string) bool { return strings.HasPrefix(state, statementFaults) }

// IsInvalidValue reports whether the server refused a value, such as a zero byte in a text.
func IsInvalidValue(err error) bool { return strings.HasPrefix(SQLState(err), invalidValues) }

// IsIntegrityViolation reports whether a constraint refused a row.
func IsIntegrityViolation(err error) bool {
	return strings.HasPrefix(SQLState(err), integrityViolations)
}

// IsRowSecurity reports whether a row security policy refused a row. A missing privilege has the
// same SQLSTATE, and the messages are translated, so IsRowSecurity compares the server's routine.
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

// Fault is the cause of an error of a statement about several rows.
type Fault int

const (
	FaultServer    Fault = iota // the connection, the server or another transaction, but no row
	FaultStatement              // the whole statement, or a trigger or function that was called for one row
	FaultRow                    // one of the rows
)

// FaultOf returns the cause of an error of a statement about several rows. It considers only
// the SQLSTATE. A missing table, for example, may be a table of the statement, or of a trigger
// for one row. Without an error, FaultOf returns FaultServer.
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
		if class[0] >= 'I' { // classes that SQL reserves for implementations, which a trigger may raise
			return FaultRow
		}
	}
	return FaultStatement
}

// IsUndefined reports whether a table or a column is missing.
func IsUndefined(err error) bool {
	s := SQLState(err)
	return s == UndefinedTable || s == UndefinedColumn
}

// Misfit adds the remedy to err if the statement does not fit the tables.
func Misfit(err error) error {
	if s := SQLState(err); !IsUndefined(err) && s != UndefinedFunction && s != NoConflictTarget {
		return err
	}
	return fmt.Errorf("%w: the tables lack a part, or other tables have their names: pgfrontier doctor says which, and how to create it", err)
}

// Dropped is the error of a statement that wrote fewer rows than it was to. tables names the tables.
func Dropped(tables string) error {
	return fmt.Errorf("the server leaves out rows of %s without an error: a BEFORE trigger of yours must return NEW, or OLD for a DELETE (pgfrontier doctor names it)", tables)
}

// IsUnanswered reports whether an error of a COMMIT leaves the outcome unknown. There was no
// answer, or the server was shutting down.
func IsUnanswered(err error) bool {
	s := SQLState(err)
	return s == "" || strings.HasPrefix(s, connectionExceptions) || strings.HasPrefix(s, operatorInterventions)
}

// Violation returns the name of the violated constraint and the server's detail.
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

// IsConnectionLoss reports whether the connection was lost or the server stopped.
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

// CutOff adds the cause of an ended ctx to an error that does not contain the cause. For a cut-off
// statement, some drivers report only that it was canceled or that the connection is bad.
func CutOff(ctx context.Context, err error) error {
	why := context.Cause(ctx)
	if err == nil || why == nil || errors.Is(err, why) {
		return err
	}
	return fmt.Errorf("%w: %w", why, err)
}

// errPoolClosed is the error of a closed sql.DB. database/sql does not export the error, so a
// closed sql.DB without a database returns it.
var errPoolClosed = func() error {
	db := sql.OpenDB(nowhere{})
	_ = db.Close()
	return db.Ping()
}()

// nowhere connects to no database.
type nowhere struct{ driver.Connector }

// IsPoolClosed reports whether err says that the pool was closed.
func IsPoolClosed(err error) bool { return err != nil && errors.Is(err, errPoolClosed) }

// IsStandby reports whether the server that answered is a standby: it refused to write or to
// read an UNLOGGED table.
func IsStandby(err error) bool {
	s := SQLState(err)
	return s == ReadOnlyTransaction || s == FeatureNotSupported
}

// IsRolledBack reports whether PostgreSQL answered a COMMIT with ROLLBACK.
func IsRolledBack(err error) bool {
	return errors.Is(err, pgx.ErrTxCommitRollback) || strings.Contains(err.Error(), "in a failed transaction")
}

// IsNotSent reports whether an error proves that a COMMIT was not sent. There was no
// transaction any more.
func IsNotSent(err error) bool {
	// The second text is lib/pq's, which checks the state before it sends. After a COMMIT,
	// lib/pq can find only other states.
	return errors.Is(err, sql.ErrTxDone) || err.Error() == "pq: unexpected transaction status idle"
}

// IsRefused reports whether PostgreSQL's answer to a COMMIT proves that nothing was committed.
func IsRefused(err error) bool {
	s := SQLState(err)
	return IsRolledBack(err) || IsConflict(err) || s == IdleInTransaction || IsIntegrityViolation(err)
}
