package worker

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// prepared is a prepared transaction that holds a consumer's checkpoint row.
// The zero value is none. A handler that sends PREPARE TRANSACTION leaves one
// behind: its lock outlasts the session, the worker and the server.
type prepared struct {
	transaction string // its id
	gid         string // its name, as an SQL literal
	owner       string // the role that prepared it
	age         time.Duration
}

// holderPrepared finds the prepared transaction that holds the row of the
// consumer $1: its id is the row's xmax. No session has to be known for that.
func holderPrepared(t tables.Tables) string {
	return `
SELECT p.transaction::text, quote_literal(p.gid), p.owner::text, extract(epoch FROM clock_timestamp() - p.prepared)::float8
FROM ` + t.Checkpoints.SQL() + ` AS c JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = c.xmax AND p.database = current_database()
WHERE c.consumer_name = $1::text LIMIT 1`
}

// HolderPrepared returns the prepared transaction that holds a consumer's row.
func (c checkpoints) HolderPrepared(ctx context.Context, q store.Querier, unit string) (p prepared, err error) {
	var seconds float64
	err = q.QueryRowContext(ctx, c.holderPrepared, unit).Scan(&p.transaction, &p.gid, &p.owner, &seconds)
	if errors.Is(err, sql.ErrNoRows) {
		return prepared{}, nil
	}
	if err != nil {
		return p, fmt.Errorf("worker: look for a prepared transaction that holds consumer %q: %w", unit, err)
	}
	p.age = time.Duration(seconds * float64(time.Second)).Round(time.Second)
	return p, nil
}

// String names the transaction and says what to do about it.
func (p prepared) String() string {
	return fmt.Sprintf("prepared transaction %s (of role %s, since %v): ROLLBACK PREPARED %[1]s; if a handler prepared it, COMMIT PREPARED would move the checkpoint past events that no handler has finished", p.gid, p.owner, p.age)
}
