package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// guard returns the statements of [Checkpoints.Guard]: plain, and audited with audit rows and
// effects.
//
// The statement finds the row by its ctid, where it was last read. A search by name would read
// all versions of the row that cannot be removed yet. Beside a transaction that stays open,
// each batch would be slower than the batch before. A row that has moved is not found, so the
// caller loads it again. The position is compared as well as the revision, because a process
// of another library does not raise the revision.
//
// A dead connection must not keep the row. So the server ends a transaction that stays idle
// for as long as a batch may take. The limit is set before the wait for the row: a guard that
// fails afterwards still holds the lock.
//
// The role's lock_timeout does not end the wait for the row. The handlers' statements have the
// role's lock_timeout again.
func guard(t tables.Tables, worker uuid.UUID, server Server) (plain, audited string) {
	// The subquery reads the role's setting before it is changed.
	const limits = `limits AS MATERIALIZED (
	SELECT role, set_config('lock_timeout', '0', true) AS lock, set_config('idle_in_transaction_session_timeout', $6::text, true) AS idle
	FROM (SELECT current_setting('lock_timeout') AS role OFFSET 0) AS before
)`
	const restored = `set_config('lock_timeout', (SELECT role FROM limits), true) IS NOT NULL`
	guard := func(more string) string {
		return `
WITH ` + limits + `, guard AS (
	UPDATE ` + t.Checkpoints.SQL() + `
	SET last_position = $3::bigint, revision = revision + 1, updated_at = clock_timestamp()` + more + `
	WHERE ctid = $7::text::tid
		AND consumer_name = $1::text AND revision = $2::bigint AND last_position <= $3::bigint AND last_position = $8::bigint
		AND ` + server.Incarnation + ` = $4::text AND $3::bigint <= ` + server.last() + `
		AND EXISTS (SELECT FROM ` + t.Assignments.SQL() + ` WHERE consumer_name = $1::text AND worker_id = $5::uuid)
		AND (SELECT lock || idle FROM limits) IS NOT NULL
	RETURNING revision, ctid::text AS at, xmin::text AS author, ` + written + ` AS written, tableoid AS home, updated_at
)`
	}
	// Other sessions can see which worker's batch holds the row.
	result := `
SELECT revision, at, author, written, pg_current_xact_id()::text, current_setting('role'), ` + pgdriver.MarkTransaction + `, ` + restored + ` AND ` + signBatch(worker) + ` FROM guard`
	audit := `, gone AS (
	DELETE FROM ` + t.GapSkips.SQL() + `
	WHERE id IN (SELECT jsonb_array_elements_text($11::jsonb)::bigint) AND EXISTS (SELECT FROM guard)
), audit AS (` + insertMarks(t, "guard", "$5", "$3", "$9", "$10") + `
)`
	return guard("") + result, guard(`, effects = coalesce($12::jsonb, effects)`) + audit + result
}

// Guard makes a batch exactly-once. It is the first statement of the batch's transaction. It
// moves the checkpoint if, and only if, four conditions hold. The consumer's progress has not
// changed since from was loaded. The server is the incarnation in which the frontier was
// computed. The new position was issued. The consumer is assigned to this worker. Then the
// row's lock keeps every other worker from beginning a batch of this consumer. If ok is false,
// roll back and load again.
func (c Checkpoints) Guard(ctx context.Context, tx store.Querier, unit string, from *State, a Advance) (m Moved, ok bool, err error) {
	args := []any{unit, from.Revision, a.To, a.Token, c.worker.String(), c.idleTimeout, from.Row, from.Position}
	statement := c.guard
	if len(a.Marks) > 0 || len(a.Gone) > 0 || a.Effects != nil {
		marks, err := json.Marshal(append([]Mark{}, a.Marks...))
		if err != nil {
			return m, false, err
		}
		gone, err := json.Marshal(append([]int64{}, a.Gone...))
		if err != nil {
			return m, false, err
		}
		statement, args = c.guardAndAudit, append(args, a.Head, string(marks), string(gone), stored(a.Effects))
	}
	var mark string
	var signed bool
	err = tx.QueryRowContext(ctx, statement, args...).Scan(&m.Revision, &m.Row, &m.Author, &m.Written, &m.Transaction, &m.Role, &mark, &signed)
	if errors.Is(err, sql.ErrNoRows) {
		return m, false, nil
	}
	return m, err == nil, err
}

// stored returns the text of borders for a statement, NULL if they do not change.
func stored(b *delivered.Borders) sql.NullString {
	if b == nil {
		return sql.NullString{}
	}
	return sql.NullString{String: b.String(), Valid: true}
}
