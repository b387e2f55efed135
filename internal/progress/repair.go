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

// Repair is what a repair writes.
type Repair struct {
	To      int64            // the checkpoint
	Through int64            // nothing above was handled
	Marks   []Mark           // in place of those that the batch wrote
	Letters []DeadLetter     // that the batch removed
	Forget  bool             // the batch took the mark to forget off those that it left
	Effects *effects.Borders // nil: the batch has not changed them
}

// Committed is a batch that its handler committed, as it left the row.
type Committed struct {
	After  Version
	To     int64  // the checkpoint
	Head   int64  // highest visible position, as far as its worker has seen
	Token  string // the incarnation in which it is set back
	Reason string // for the operators
}

// repair sets a checkpoint back, with all that the batch's transaction $4
// wrote beside it. An operator is told by the table of operations. It is to
// outlast a crash also where commits are asynchronous: nobody would repair it
// again.
func repair(t tables.Tables, server Server) string {
	skips, letters := t.GapSkips.SQL(), t.DeadLetters.SQL()
	return `
WITH durable AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
), repaired AS (
	UPDATE ` + t.Checkpoints.SQL() + `
	SET last_position = $6::bigint, revision = revision + 1, updated_at = clock_timestamp(), effects = coalesce($15::jsonb, effects)
	WHERE ctid = $3::text::tid AND consumer_name = $1::text AND revision = $2::bigint AND xmin::text = $4::text
		AND ` + server.Incarnation + ` = $5::text AND EXISTS (SELECT FROM durable)
	RETURNING revision, updated_at
), unmarked AS (
	DELETE FROM ` + skips + `
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND EXISTS (SELECT FROM repaired)
), marked AS (` + insertMarks(t, "repaired", "$7", "$6", "$8", "$9") + `
), removed AS (
	DELETE FROM ` + letters + `
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND global_position > $10::bigint AND NOT $16::boolean AND EXISTS (SELECT FROM repaired)
), marked_again AS (
	UPDATE ` + letters + ` SET forget = true
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND $16::boolean AND EXISTS (SELECT FROM repaired)
), put_back AS (
	INSERT INTO ` + letters + ` (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, order_key, retry_at, forget)
	SELECT $1::text, l.position, l.type, l.id, l.event_id, l.event_type, l.error, l.attempts, CASE WHEN l.order_type = '' THEN l.order_id END, clock_timestamp(), coalesce(l.forget, false)
	FROM repaired, jsonb_to_recordset($11::jsonb) AS l(position bigint, type text, id text, event_id uuid, event_type text, error text, attempts int, order_type text, order_id text, forget boolean)
	ON CONFLICT (consumer_name, global_position) DO NOTHING
), recorded AS (
	INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason)
	SELECT $1::text, 'repair', $12::jsonb, $13::text, $14::text FROM repaired
)
SELECT revision FROM repaired`
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
	detail, err1 := json.Marshal(repairDetail{From: b.To, To: m.To, Transaction: b.After.Author})
	marks, err2 := json.Marshal(append([]Mark{}, m.Marks...))
	letters, err3 := json.Marshal(append([]DeadLetter{}, m.Letters...))
	if err := errtext.Join(err1, err2, err3); err != nil {
		return false, err
	}
	var revision int64
	err = q.QueryRowContext(ctx, c.repair, unit, b.After.Revision, b.After.Row, b.After.Author, b.Token,
		m.To, c.worker.String(), b.Head, string(marks), m.Through, string(letters),
		string(detail), c.operator(), b.Reason, stored(m.Effects), m.Forget).Scan(&revision)
	if errors.Is(err, sql.ErrNoRows) {
		return c.Repaired(ctx, q, unit, b.After, b.To) // perhaps the answer to the last try was lost
	}
	if err != nil {
		return false, fmt.Errorf("worker: set back the checkpoint of consumer %q: %w", unit, err)
	}
	return true, nil
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
