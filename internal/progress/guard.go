package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/store"
)

// Guard makes a batch exactly-once. It is the first statement of the batch's transaction. It
// moves the checkpoint if, and only if, four conditions hold. The consumer's progress has not
// changed since from was loaded. The server is the incarnation in which the frontier was
// computed. The new position was issued. The consumer is assigned to this worker. Then the
// row's lock keeps every other worker from beginning a batch of this consumer. If ok is false,
// roll back and load again.
func (c Checkpoints) Guard(ctx context.Context, tx store.Querier, unit string, from *State, a Advance) (m Moved, ok bool, err error) {
	args := append([]any{unit, from.Revision, a.To, a.Token, c.worker.String(), c.idleTimeout, from.Row, from.Position}, a.Region.Since(from.Receipt, from.Position)...)
	statement := c.guard
	if len(a.Marks) > 0 || len(a.Gone) > 0 || a.Effects != nil || len(a.Rows) > 0 {
		marks, err := json.Marshal(append([]Mark{}, a.Marks...))
		if err != nil {
			return m, false, err
		}
		gone, err := json.Marshal(append([]int64{}, a.Gone...))
		if err != nil {
			return m, false, err
		}
		rows, err := json.Marshal(append([]receipt.Row{}, a.Rows...))
		if err != nil {
			return m, false, err
		}
		statement, args = c.guardAndAudit, append(args, a.Head, string(marks), string(gone), stored(a.Effects), string(rows))
	}
	var mark string
	var signed, kept bool
	err = tx.QueryRowContext(ctx, statement, args...).Scan(&m.Revision, &m.Row, &m.Author, &m.Written, &m.Transaction, &m.Role, &mark, &signed, &kept)
	if errors.Is(err, sql.ErrNoRows) {
		return m, false, nil
	}
	if err == nil && !kept {
		err = pgdriver.Dropped(c.tables.GapSkips.String() + " or " + c.tables.Receipts.String())
	}
	return m, err == nil, err
}

// Refused returns, after a Guard that has moved nothing, store.ErrIncarnation if another incarnation
// answers, an error if a trigger drops the move, and nil if the progress or the assignment has changed.
func (c Checkpoints) Refused(ctx context.Context, tx store.Querier, unit string, from *State, a Advance) (err error) {
	var token string
	var dropped bool
	err = tx.QueryRowContext(ctx, c.refused, unit, from.Revision, c.worker.String(), from.Row, from.Position, a.To).Scan(&token, &dropped)
	switch {
	case err != nil:
		return fmt.Errorf("worker: find why the guard has moved nothing: %w", err)
	case token != a.Token:
		return store.ErrIncarnation
	case dropped:
		return pgdriver.Dropped(c.tables.Checkpoints.String())
	}
	return nil
}

// region returns the text of a region for a statement, NULL if there is none.
func region(r *receipt.Region) sql.NullString {
	if r == nil {
		return sql.NullString{}
	}
	return sql.NullString{String: r.String(), Valid: true}
}

// stored returns the text of borders for a statement, NULL if they do not change.
func stored(b *delivered.Borders) sql.NullString {
	if b == nil {
		return sql.NullString{}
	}
	return sql.NullString{String: b.String(), Valid: true}
}
