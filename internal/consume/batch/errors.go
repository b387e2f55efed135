package batch

import (
	"database/sql/driver"
	"errors"
	"fmt"
)

// ErrTransactionEnded is the failure of a handler that ended the batch's transaction.
var ErrTransactionEnded = errors.New("worker: the handler ended the batch's transaction, which belongs to the worker: remove the Commit, Rollback or equivalent SQL from it")

// Causes of a failed batch other than the handler's own error.
var (
	errBatchTimeout = errors.New("the batch took longer than BatchTimeout")
	errConnClosed   = errors.New("the handler closed the connection of consumer.Conn, and a Close waits until the transaction ends: remove it")
)

// errGone is the failure of a handler that returned nil on a lost connection.
var errGone = fmt.Errorf("the connection was lost in the handler: %w", driver.ErrBadConn)

// keyError is an error of the consumer's key: no handler was called.
type keyError struct{ error }

func (e keyError) Unwrap() error { return e.error }
