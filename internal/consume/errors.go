package consume

import (
	"errors"
	"fmt"

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
	ErrDeadLettered        = errors.New("worker: the event is among the consumer's dead letters")
	ErrNoConsumer          = errors.New("worker: there is no such consumer: check the name (ops.Operator.Consumers lists those that have run), or start a worker that has code for it before")
)

// errGoexit ends a worker after user code has ended one of its goroutines.
var errGoexit = errors.New("worker: a handler or a key called runtime.Goexit (testing's FailNow does), which ends a goroutine of the worker")

// errNoNotifier reports that events are appended and no notification arrives.
func errNoNotifier(channel string) error {
	return fmt.Errorf("worker: events are appended but nothing notifies channel %q: make the stores that append with storepostgres.WithNotifyChannel(%q), or name their channel by WithNotifyChannel", channel, channel)
}

// explain adds the remedy to some errors of the database.
func explain(err error) error { return runtime.Explain("worker", err) }
