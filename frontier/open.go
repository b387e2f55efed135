package frontier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// OpenTransaction is a transaction that has drawn positions and has not ended. A field that
// this role may not see is zero (GRANT pg_read_all_stats). If track_activities is off, Start
// is nil and State is "disabled".
type OpenTransaction struct {
	PID         int    // of the backend; 0: a prepared transaction
	GID         string // of a prepared transaction
	User        string
	Application string
	Client      string        // address; empty: a Unix socket
	State       string        // as in pg_stat_activity, or "prepared"
	Age         time.Duration // of the transaction
	StateAge    time.Duration // how long the session has been in State
	// BackendStart and Start distinguish the transaction from a later transaction with the
	// same PID.
	BackendStart, Start *time.Time
	Query               string // the latest statement; empty unless requested
}

// Remedy returns the command that ends the transaction.
func (t OpenTransaction) Remedy() string { return Holder{PID: t.PID, GID: t.GID}.Remedy() }

// OpenTransactions returns the transactions that may own positions of a log, oldest first. It
// takes no lock. The text of statements may contain data of users: set queries only where this
// data may be shown.
func OpenTransactions(ctx context.Context, q store.Querier, log store.SequenceNamer, queries bool) ([]OpenTransaction, error) {
	if pgdriver.IsNil(q) || pgdriver.IsNil(log) {
		return nil, errors.New("frontier: q or log is nil: pass a database and its event store")
	}
	var o origin
	if err := o.find(ctx, q, log); err != nil {
		return nil, err
	}
	all, err := pgdriver.QueryAll(ctx, q, pgdriver.Columns(func(t *OpenTransaction) []any {
		return []any{&t.PID, &t.GID, &t.User, &t.Application, &t.Client, &t.State, pgdriver.Duration(&t.Age), pgdriver.Duration(&t.StateAge), pgdriver.UTCOrNil(&t.BackendStart), pgdriver.UTCOrNil(&t.Start), &t.Query}
	}), texts["open_transactions"], o.sequenceOID, queries)
	if err != nil {
		return nil, fmt.Errorf("frontier: find the open transactions of %s: %w", o.table, err)
	}
	return all, nil
}
