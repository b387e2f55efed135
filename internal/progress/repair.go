package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/sqltext"
	"github.com/pgfrontier/worker/store"
)

// SetBack is the progress after a batch of which not all events were handled.
type SetBack struct {
	To      int64              // the checkpoint
	Through int64              // no position above was handled
	Marks   []Mark             // in place of the marks that the batch wrote
	Effects *delivered.Borders // nil: the batch has not changed them
	Receipt                    // without the events above Through; its Rows are nil if the batch has written none
}

// Repair is the change that a repair writes.
type Repair struct {
	SetBack
	DeadLetters []DeadLetter // removed by the batch
	Forget      bool         // the batch cleared the flag forget of the dead letters that it left
}

// Committed is a batch that its handler committed, with the row as the batch left it.
type Committed struct {
	After  Version
	To     int64  // the checkpoint
	Head   int64  // highest visible position that its worker has read
	Token  string // the incarnation in which the progress is set back
	Reason string // for the operators
}

// repairDetail is the detail of a repair in the table of operations.
type repairDetail struct {
	From        int64  `json:"from"`
	To          int64  `json:"to"`
	Transaction string `json:"transaction"`
}

// repairs are the statements that set a checkpoint back.
type repairs struct {
	worker                    uuid.UUID
	repair, repaired, shorten string
}

func newRepairs(worker uuid.UUID, r func(name string, more sqltext.Values) string) repairs {
	return repairs{
		worker: worker, repaired: r("repaired", nil),
		repair:  r("repair", sqltext.Values{"more": `, revision = revision + 1, updated_at = clock_timestamp()`, "condition": `EXISTS (SELECT FROM durable)`, "removes": `NOT $18::boolean`}),
		shorten: r("shorten", sqltext.Values{"more": "", "condition": `pg_current_xact_id_if_assigned()::xid::text = $4::text`, "removes": "true"}),
	}
}

// Repair reverts the progress of a batch that its handler committed without handling all its
// events. ok is false if the row is no longer as the batch left it.
func (r repairs) Repair(ctx context.Context, q store.Querier, unit string, b Committed, m Repair) (ok bool, err error) {
	args, err1 := r.setBack(unit, b, m.SetBack)
	detail, err2 := json.Marshal(repairDetail{From: b.To, To: m.To, Transaction: b.After.Author})
	deadLetters, err3 := json.Marshal(append([]DeadLetter{}, m.DeadLetters...))
	if err := errtext.Join(err1, err2, err3); err != nil {
		return false, err
	}
	args = append(args, string(deadLetters), string(detail), By(r.worker), b.Reason, m.Forget)
	var revision int64
	err = q.QueryRowContext(ctx, r.repair, args...).Scan(&revision)
	if errors.Is(err, sql.ErrNoRows) {
		return r.Repaired(ctx, q, unit, b.After, b.To) // the answer to the previous attempt may have been lost
	}
	if err != nil {
		return false, fmt.Errorf("worker: set back the checkpoint of consumer %q: %w", unit, err)
	}
	return true, nil
}

// setBack returns the arguments of the SQL of setBack.
func (r repairs) setBack(unit string, b Committed, m SetBack) ([]any, error) {
	marks, err := json.Marshal(append([]Mark{}, m.Marks...))
	var rows sql.NullString // NULL: the batch has written none, so none is searched for
	text, err2 := json.Marshal(m.Rows)
	if m.Rows != nil {
		rows = sql.NullString{String: string(text), Valid: true}
	}
	return []any{unit, b.After.Revision, b.After.Row, b.After.Author, b.Token,
		m.To, r.worker.String(), b.Head, string(marks), m.Through, stored(m.Effects), region(m.Region), rows}, errtext.Join(err, err2)
}

// Shorten reverts, in a batch's own transaction, the part of the guard's writes that concerns
// events that were not handled. It returns the version of the row, which the commit publishes.
// ok is false if the transaction does not hold the row as the guard left it.
func (r repairs) Shorten(ctx context.Context, tx store.Querier, unit string, b Committed, m SetBack) (v Version, ok bool, err error) {
	v = b.After
	args, err := r.setBack(unit, b, m)
	if err != nil {
		return v, false, err
	}
	switch err := tx.QueryRowContext(ctx, r.shorten, args...).Scan(&v.Row); {
	case errors.Is(err, sql.ErrNoRows):
		return v, false, nil
	case err != nil:
		return v, false, fmt.Errorf("worker: end a batch of consumer %q at position %d: %w", unit, m.To, err)
	}
	return v, true, nil
}

// AsRole runs statements of the worker in a batch's transaction, as the role with which the
// transaction began. A handler may have changed the role. AsRole restores the handler's role
// for the statements of the commit.
func AsRole(ctx context.Context, tx store.Querier, role string, statements func() error) error {
	const set = `SELECT before FROM (SELECT current_setting('role') AS before OFFSET 0) AS b WHERE set_config('role', $1::text, true) IS NOT NULL`
	var before string
	if err := tx.QueryRowContext(ctx, set, role).Scan(&before); err != nil {
		return err
	}
	if err := statements(); err != nil || before == role {
		return err
	}
	return tx.QueryRowContext(ctx, set, before).Scan(&role)
}

// Repaired reports whether this worker has already reverted a batch that moved the checkpoint
// to a position.
func (r repairs) Repaired(ctx context.Context, q store.Querier, unit string, after Version, to int64) (ok bool, err error) {
	err = q.QueryRowContext(ctx, r.repaired, unit, By(r.worker), after.Author, strconv.FormatInt(to, 10)).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("worker: find the repair of consumer %q: %w", unit, err)
	}
	return ok, nil
}

// TransactionStatus returns the status of a transaction: "committed", "aborted", "in
// progress", or empty if the transaction is too old. The server keeps the status of hundreds
// of millions of transactions.
func TransactionStatus(ctx context.Context, q store.Querier, transaction string) (string, error) {
	var status sql.NullString
	if err := q.QueryRowContext(ctx, `SELECT pg_xact_status($1::text::xid8)`, transaction).Scan(&status); err != nil {
		return "", fmt.Errorf("worker: read the status of transaction %s: %w", transaction, err)
	}
	return status.String, nil
}
