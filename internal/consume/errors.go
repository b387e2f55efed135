package consume

import (
	"errors"

	"github.com/pgfrontier/worker/internal/refusal"
)

// Errors of the worker, as package worker documents them.
var (
	ErrConsecutiveFailures = errors.New("worker: a consumer failed too often in a row")
	ErrOutage              = refusal.ErrOutage
	ErrTransactionEnded    = errors.New("worker: the handler ended the batch's transaction, which belongs to the worker: remove the Commit, Rollback or equivalent SQL from it")
	ErrOutcomeUnknown      = errors.New("worker: an outage hides whether a handler ended the batch's transaction")
	ErrPoolClosed          = errors.New("worker: sql: database is closed: close db after Start has returned, not before")
	ErrHandlerOverdue      = errors.New("worker: a handler ignores the end of its context: pass ctx on to everything that it waits for, return when it ends, and do not use tx inside of conn.Raw, which waits for itself")
	ErrAlreadyStarted      = errors.New("worker: a Worker starts once; make another with New")
	ErrPrivileges          = refusal.ErrPrivileges
	ErrStandby             = refusal.ErrStandby
	ErrTransactionPooling  = refusal.ErrTransactionPooling
	ErrPreparedStatements  = refusal.ErrPreparedStatements
	ErrInvalidConfig       = refusal.ErrInvalidConfig
	ErrDeadLettered        = errors.New("worker: the event is among the consumer's dead letters")
	ErrNoConsumer          = errors.New("worker: there is no such consumer: check the name (ops.Operator.Consumers lists those that have run), or start a worker that has code for it before")
)

// Causes of a failed batch other than the handler's own error.
var (
	errBatchTimeout = errors.New("the batch took longer than BatchTimeout")
	errConnClosed   = errors.New("the handler closed the connection of consumer.Conn, and a Close waits until the transaction ends: remove it")
	errNotCalled    = errors.New("the middleware did not call the next function, so nothing was done")
	errNilContext   = errors.New("the middleware called the next function with a nil context: pass on the one that it was given, or one made from it")
	errCutShort     = errors.New("a panic in the next function that the middleware has called ended the batch")
	errCalledTwice  = errors.New("the middleware has called the next function already")
	errCalledLate   = errors.New("the middleware has returned already, so the next function does nothing: call it before, and wait for it")
	errTxAborted    = errors.New("the handler returned no error, but a statement of its failed and PostgreSQL has aborted the transaction: return that error, or guard the statement by a savepoint")
)

// errGoexit ends a worker after user code has ended one of its goroutines.
var errGoexit = errors.New("worker: a handler or a key called runtime.Goexit (testing's FailNow does), which ends a goroutine of the worker")
