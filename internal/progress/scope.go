package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Recorded is the scope that the row of a unit records.
type Recorded struct {
	Unit   string
	Stored string       // as stored in the row; empty: not recorded
	Scope  *scope.Scope // parsed from Stored; nil: not recorded
}

// recorded parses the scope that a row stores.
func recorded(unit, stored string) (r Recorded, err error) {
	r = Recorded{Unit: unit, Stored: stored}
	if stored != "" {
		var s scope.Scope
		if s, err = scope.Parse(stored); err != nil {
			return r, fmt.Errorf("worker: consumer %q: %w", unit, err)
		}
		r.Scope = &s
	}
	return r, nil
}

func scopes(t tables.Tables) string {
	return `
SELECT consumer_name, coalesce(scope::text, '') FROM ` + t.Checkpoints.SQL() + `
WHERE split_at IS NULL AND split_part(consumer_name, '#', 1) IN (SELECT jsonb_array_elements_text($1::jsonb))
ORDER BY consumer_name COLLATE "C"`
}

// Scopes reads the scopes in the rows of consumers and of their parts.
func (c Checkpoints) Scopes(ctx context.Context, q store.Querier, consumers []string) ([]Recorded, error) {
	names, err := json.Marshal(consumers)
	if err != nil {
		return nil, err
	}
	all, err := pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (Recorded, error) {
		var unit, stored string
		if err := rows.Scan(&unit, &stored); err != nil {
			return Recorded{}, err
		}
		return recorded(unit, stored)
	}, c.scopes, string(names))
	if err != nil {
		return nil, fmt.Errorf("worker: read the scopes of %d consumers: %w", len(consumers), err)
	}
	return all, nil
}

// Rescoped is a change of the scope that runs a unit.
type Rescoped struct {
	From     *scope.Scope `json:"from"` // nil: not recorded
	To       scope.Scope  `json:"to"`
	Position int64        `json:"position"` // the last position with the scope From
}

// rescope returns a statement that must follow a lock of the row in the same transaction. The
// record then has the position and the open ranges that the last batch left. Without the lock,
// the statement would wait for a batch that commits. It would then record the new position
// with the old open ranges. If From is unknown, nothing is recorded.
func rescope(t tables.Tables, server Server) string {
	return `
WITH changed AS (
	UPDATE ` + t.Checkpoints.SQL() + ` SET scope = $3::jsonb, scope_since = CASE WHEN scope IS NULL THEN last_position ELSE coalesce(scope_since, last_position) END,
		revision = revision + 1, updated_at = clock_timestamp()
	WHERE consumer_name = $1::text AND split_at IS NULL AND coalesce(scope::text, '') = $2::text AND ($6::text = '' OR ` + server.Incarnation + ` = $6::text)
	RETURNING last_position
), told AS (
	INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason)
	SELECT $1::text, 'scope', jsonb_build_object('from', nullif($2::text, '')::jsonb, 'to', $3::jsonb, 'position', last_position, 'open', coalesce((
		SELECT jsonb_agg(jsonb_build_object('first', gap_position, 'last', gap_end)) FROM ` + t.GapSkips.SQL() + ` WHERE consumer_name = $1::text AND state = 'open'), '[]')), $4::text, $5::text
	FROM changed WHERE $2::text <> ''
)
SELECT last_position FROM changed`
}

// beginner is a pool or a connection of a pool.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Rescope records the scope to for a unit from its position on, if the row still has scope r.
// The guard then rejects each batch that was planned before. If token is not empty, Rescope
// writes only in that incarnation of the server. reason is shown to operators.
func (c Checkpoints) Rescope(ctx context.Context, db beginner, r Recorded, to scope.Scope, token, reason string) (d Rescoped, ok bool, err error) {
	d = Rescoped{From: r.Scope, To: to}
	err = pgdriver.Repeated(func() error {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // a no-op after Commit
		if _, err := tx.ExecContext(ctx, c.lockScope, r.Unit); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, c.rescope, r.Unit, r.Stored, to.String(), c.operator(), reason, token).Scan(&d.Position); err != nil {
			return err
		}
		return tx.Commit()
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return d, false, nil
	case err != nil:
		return d, false, fmt.Errorf("worker: record the scope of consumer %q: %w", r.Unit, err)
	}
	return d, true, nil
}

// Selecting is another worker and the scope of its code for a consumer.
type Selecting struct {
	Worker uuid.UUID
	Place  string // for display
	Key    string // of the consumer's partitions
	Scope  scope.Scope
}

func selecting(t tables.Tables) string {
	return `
SELECT worker_id::text, coalesce(hostname, '') || '/' || coalesce(pid, 0), coalesce(partitions->($1::text)->>'key', ''), partitions->($1::text)->>'scope'
FROM ` + t.Nodes.SQL() + ` WHERE worker_id <> $2::uuid AND NOT draining AND partitions->($1::text)->>'scope' IS NOT NULL`
}

// Selecting reads the scopes of the other workers with code for a consumer, dead or alive. It
// leaves out draining workers.
func (c Checkpoints) Selecting(ctx context.Context, q store.Querier, consumer string) ([]Selecting, error) {
	all, err := pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (s Selecting, err error) {
		var text string
		if err = rows.Scan(&s.Worker, &s.Place, &s.Key, &text); err == nil {
			s.Scope, err = scope.Parse(text)
		}
		return s, err
	}, c.selecting, consumer, c.worker.String())
	if err != nil {
		return nil, fmt.Errorf("worker: read the scopes of the workers with code for consumer %q: %w", consumer, err)
	}
	return all, nil
}
