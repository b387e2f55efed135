package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/pgfrontier/worker/internal/effects"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// SetBack is what a batch's progress is set back to, if not all of its events were handled.
type SetBack struct {
	To      int64            // the checkpoint
	Through int64            // nothing above was handled
	Marks   []Mark           // in place of those that the batch wrote
	Effects *effects.Borders // nil: the batch has not changed them
}

// Repair is what a repair writes.
type Repair struct {
	SetBack
	Letters []DeadLetter // that the batch removed
	Forget  bool         // the batch took the mark to forget off those that it left
}

// Committed is a batch that its handler committed, as it left the row.
type Committed struct {
	After  Version
	To     int64  // the checkpoint
	Head   int64  // highest visible position, as far as its worker has seen
	Token  string // the incarnation in which it is set back
	Reason string // for the operators
}

// setBack sets a checkpoint back, with the audit and the effects that the batch's transaction $4
// wrote beside it, if a condition holds. more is set in the row, too. What the batch wrote to the
// dead letters above $10 is removed where removes holds.
func setBack(t tables.Tables, server Server, more, condition, removes string) string {
	skips := t.GapSkips.SQL()
	return `set_back AS (
	UPDATE ` + t.Checkpoints.SQL() + `
	SET last_position = $6::bigint, effects = coalesce($11::jsonb, effects)` + more + `
	WHERE ctid = $3::text::tid AND consumer_name = $1::text AND revision = $2::bigint AND xmin::text = $4::text
		AND ` + server.Incarnation + ` = $5::text AND ` + condition + `
	RETURNING revision, updated_at, ctid::text AS at
), unmarked AS (
	DELETE FROM ` + skips + `
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND EXISTS (SELECT FROM set_back)
), marked AS (` + insertMarks(t, "set_back", "$7", "$6", "$8", "$9") + `
), removed AS (
	DELETE FROM ` + t.DeadLetters.SQL() + `
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND global_position > $10::bigint AND ` + removes + ` AND EXISTS (SELECT FROM set_back)
)`
}

// shorten sets the progress back within the batch's own transaction, and in no other: the handler
// may have ended that.
func shorten(t tables.Tables, server Server) string {
	return `
WITH ` + setBack(t, server, "", `pg_current_xact_id_if_assigned()::xid::text = $4::text`, "true") + `
SELECT at FROM set_back`
}

// repair sets the progress back after the batch. An operator is told by the table of operations.
// It is to outlast a crash also where commits are asynchronous: nobody would repair it again.
func repair(t tables.Tables, server Server) string {
	letters := t.DeadLetters.SQL()
	return `
WITH durable AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
), ` + setBack(t, server, `, revision = revision + 1, updated_at = clock_timestamp()`, `EXISTS (SELECT FROM durable)`, `NOT $16::boolean`) + `, marked_again AS (
	UPDATE ` + letters + ` SET forget = true
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND $16::boolean AND EXISTS (SELECT FROM set_back)
), put_back AS (
	INSERT INTO ` + letters + ` (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, order_key, retry_at, forget)
	SELECT $1::text, l.position, l.type, l.id, l.event_id, l.event_type, l.error, l.attempts, CASE WHEN l.order_type = '' THEN l.order_id END, clock_timestamp(), coalesce(l.forget, false)
	FROM set_back, jsonb_to_recordset($12::jsonb) AS l(position bigint, type text, id text, event_id uuid, event_type text, error text, attempts int, order_type text, order_id text, forget boolean)
	ON CONFLICT (consumer_name, global_position) DO NOTHING
), recorded AS (
	INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason)
	SELECT $1::text, 'repair', $13::jsonb, $14::text, $15::text FROM set_back
)
SELECT revision FROM set_back`
}

// repaired finds a repair of what the transaction $3 left.
func repaired(t tables.Tables) string {
	return `
SELECT EXISTS (SELECT FROM ` + t.Operations.SQL() + `
	WHERE consumer_name = $1::text AND operation = 'repair' AND operator = $2::text AND detail->>'transaction' = $3::text AND detail->>'from' = $4::text)`
}

// repairDetail is what the table of operations keeps of a repair.
type repairDetail struct {
	From        int64  `json:"from"`
	To          int64  `json:"to"`
	Transaction string `json:"transaction"`
}

// Repair undoes what a batch that its handler committed has left undone. ok is
// false if the row is no longer as the batch left it.
func (c Checkpoints) Repair(ctx context.Context, q store.Querier, unit string, b Committed, m Repair) (ok bool, err error) {
	args, err1 := c.setBack(unit, b, m.SetBack)
	detail, err2 := json.Marshal(repairDetail{From: b.To, To: m.To, Transaction: b.After.Author})
	letters, err3 := json.Marshal(append([]DeadLetter{}, m.Letters...))
	if err := errtext.Join(err1, err2, err3); err != nil {
		return false, err
	}
	args = append(args, string(letters), string(detail), c.operator(), b.Reason, m.Forget)
	var revision int64
	err = q.QueryRowContext(ctx, c.repair, args...).Scan(&revision)
	if errors.Is(err, sql.ErrNoRows) {
		return c.Repaired(ctx, q, unit, b.After, b.To) // perhaps the answer to the last try was lost
	}
	if err != nil {
		return false, fmt.Errorf("worker: set back the checkpoint of consumer %q: %w", unit, err)
	}
	return true, nil
}

// setBack are the arguments of the statement setBack.
func (c Checkpoints) setBack(unit string, b Committed, m SetBack) ([]any, error) {
	marks, err := json.Marshal(append([]Mark{}, m.Marks...))
	return []any{unit, b.After.Revision, b.After.Row, b.After.Author, b.Token,
		m.To, c.worker.String(), b.Head, string(marks), m.Through, stored(m.Effects)}, err
}

// Shorten sets back, in a batch's own transaction, what its guard has written for events that
// were not handled. It returns the version of the row, which the commit publishes. ok is false
// if the transaction does not hold the row as the guard left it.
func (c Checkpoints) Shorten(ctx context.Context, tx store.Querier, unit string, b Committed, m SetBack) (v Version, ok bool, err error) {
	v = b.After
	args, err := c.setBack(unit, b, m)
	if err != nil {
		return v, false, err
	}
	switch err := tx.QueryRowContext(ctx, c.shorten, args...).Scan(&v.Row); {
	case errors.Is(err, sql.ErrNoRows):
		return v, false, nil
	case err != nil:
		return v, false, fmt.Errorf("worker: end a batch of consumer %q at position %d: %w", unit, m.To, err)
	}
	return v, true, nil
}

// AsRole runs statements of the worker in a batch's transaction as the role with which that began.
// A handler may have changed it, and has its own again for what the commit runs.
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

// Repaired reports whether this worker has set back already what a batch to a
// position left.
func (c Checkpoints) Repaired(ctx context.Context, q store.Querier, unit string, after Version, to int64) (ok bool, err error) {
	err = q.QueryRowContext(ctx, c.repaired, unit, c.operator(), after.Author, strconv.FormatInt(to, 10)).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("worker: look for the repair of consumer %q: %w", unit, err)
	}
	return ok, nil
}

// Fate asks what became of a transaction: "committed", "aborted", "in progress",
// or empty if it is too long ago. The server keeps the fate of hundreds of
// millions of transactions.
func (c Checkpoints) Fate(ctx context.Context, q store.Querier, transaction string) (string, error) {
	var fate sql.NullString
	if err := q.QueryRowContext(ctx, `SELECT pg_xact_status($1::text::xid8)`, transaction).Scan(&fate); err != nil {
		return "", fmt.Errorf("worker: ask for the fate of transaction %s: %w", transaction, err)
	}
	return fate.String, nil
}
