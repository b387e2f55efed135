package progress

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/delivered"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/scope"
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

// scopes are the statements on the scopes of consumers.
type scopes struct {
	worker                              uuid.UUID
	read, lock, turn, record, selecting string
}

// Scopes reads the scopes in the rows of consumers and of their parts.
func (s scopes) Scopes(ctx context.Context, q store.Querier, consumers []string) ([]Recorded, error) {
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
	}, s.read, string(names))
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

// Rescope records the scope to for a unit from its position on, if the row still has scope r.
// The guard then rejects each batch that was planned before. If token is not empty, Rescope
// writes only in that incarnation of the server. reason is shown to operators.
func (s scopes) Rescope(ctx context.Context, db pgdriver.Beginner, r Recorded, to scope.Scope, token, reason string) (d Rescoped, ok bool, err error) {
	d = Rescoped{From: r.Scope, To: to}
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, s.lock, r.Unit); err != nil {
			return err
		}
		if err := s.takeTurn(ctx, tx, to.Projection); err != nil { // after the row, which a batch may hold for long
			return err
		}
		return tx.QueryRowContext(ctx, s.record, r.Unit, r.Stored, to.String(), By(s.worker), reason, token, delivered.Shadow().String(), delivered.Begun().String()).Scan(&d.Position)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return d, false, nil
	case err != nil:
		return d, false, fmt.Errorf("worker: record the scope of consumer %q: %w", r.Unit, err)
	}
	return d, true, nil
}

// takeTurn waits for the transactions that place or rescope another version of a projection. Otherwise
// two versions that begin at the same time would not see each other, and both would have the effects.
func (s scopes) takeTurn(ctx context.Context, tx *sql.Tx, projection string) (err error) {
	if projection != "" {
		_, err = tx.ExecContext(ctx, s.turn, projection)
	}
	return err
}

// inTx calls do in a transaction, again after a conflict.
func inTx(ctx context.Context, db pgdriver.Beginner, do func(tx *sql.Tx) error) error {
	return pgdriver.Repeated(func() error { return pgdriver.InTx(ctx, db, do) })
}

// Selecting is another worker and the scope of its code for a consumer.
type Selecting struct {
	Worker uuid.UUID
	Place  string // for display
	Key    string // of the consumer's partitions
	Scope  scope.Scope
}

// Selecting reads the scopes of the other workers with code for a consumer, dead or alive. It
// leaves out draining workers.
func (s scopes) Selecting(ctx context.Context, q store.Querier, consumer string) ([]Selecting, error) {
	all, err := pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (o Selecting, err error) {
		var text string
		if err = rows.Scan(&o.Worker, &o.Place, &o.Key, &text); err == nil {
			o.Scope, err = scope.Parse(text)
		}
		return o, err
	}, s.selecting, consumer, s.worker.String())
	if err != nil {
		return nil, fmt.Errorf("worker: read the scopes of the workers with code for consumer %q: %w", consumer, err)
	}
	return all, nil
}
