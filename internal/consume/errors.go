package consume

import (
	"errors"

	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/consume/batch"
	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/internal/runtime"
)

// Errors of the worker, as package worker documents them.
var (
	ErrConsecutiveFailures = errors.New("worker: a consumer failed too often in a row")
	ErrOutage              = refusal.ErrOutage
	ErrTransactionEnded    = batch.ErrTransactionEnded
	ErrOutcomeUnknown      = txcheck.ErrOutcomeUnknown
	ErrPoolClosed          = errors.New("worker: sql: database is closed: close db after Start has returned, not before")
	ErrHandlerOverdue      = errors.New("worker: a handler ignores the end of its context: pass ctx on to everything that it waits for, return when it ends, and do not use tx inside of conn.Raw, which waits for itself")
	ErrAlreadyStarted      = errors.New("worker: a Worker starts once; make another with New")
	ErrPrivileges          = refusal.ErrPrivileges
	ErrStandby             = refusal.ErrStandby
	ErrTransactionPooling  = refusal.ErrTransactionPooling
	ErrPreparedStatements  = refusal.ErrPreparedStatements
	ErrInvalidConfig       = refusal.ErrInvalidConfig
	ErrDeadLettered        = arrival.ErrDeadLettered
	ErrNoConsumer          = arrival.ErrNoConsumer
)

// errGoexit ends a worker after user code has ended one of its goroutines.
var errGoexit = errors.New("worker: a handler or a key called runtime.Goexit (testing's FailNow does), which ends a goroutine of the worker")

// errNeverBegan ends the wait of a caller of a worker that never began.
var errNeverBegan = errors.New("this worker ended before it could begin: the error of its Start says why")

// explain adds the remedy to some errors of the database.
func explain(err error) error { return runtime.Explain("worker", err) }
