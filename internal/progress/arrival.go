package progress

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// Arrival is how far a consumer is on its way to a position.
type Arrival struct {
	Handled    bool
	Unknown    bool // it has no checkpoint
	Position   int64
	Paused     bool
	Open       bool // it has passed the position, which was in doubt
	DeadLetter bool // the event is among its dead letters
}

// Why says why the consumer has not handled the position.
func (a Arrival) Why() error {
	switch {
	case a.Unknown:
		return errors.New("it has no checkpoint, no worker has run it yet")
	case a.Paused:
		return fmt.Errorf("it is paused at position %d", a.Position)
	case a.Open:
		return errors.New("no event has appeared there yet, its transaction may be open")
	}
	return fmt.Errorf("it is at position %d", a.Position)
}

// Arrived reads whether a consumer has handled a position, and in which
// incarnation of the server.
func (c Checkpoints) Arrived(ctx context.Context, q store.Querier, unit string, position int64) (a Arrival, token string, err error) {
	err = q.QueryRowContext(ctx, c.arrived, unit, position).Scan(&a.Position, &a.Paused, &a.Open, &a.DeadLetter, &token)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Arrival{Unknown: true}, "", nil
	case err != nil:
		return a, "", fmt.Errorf("worker: look how far consumer %s is: %w", errtext.Value(unit), err)
	}
	a.Handled = a.Position >= position && !a.Open && !a.DeadLetter
	return a, token, nil
}

// Known reports whether a worker has registered code for a consumer.
func (c Checkpoints) Known(ctx context.Context, q store.Querier, unit string) (known bool, err error) {
	if err = q.QueryRowContext(ctx, c.known, unit).Scan(&known); err != nil {
		return false, fmt.Errorf("worker: look who has code for consumer %s: %w", errtext.Value(unit), err)
	}
	return known, nil
}

func known(t tables.Tables) string {
	return `SELECT EXISTS (SELECT FROM ` + t.Nodes.SQL() + ` WHERE $1::text = ANY (consumers))`
}

func arrived(t tables.Tables, server Server) string {
	return `
SELECT last_position, paused_at IS NOT NULL,
	EXISTS (SELECT FROM ` + t.GapSkips.SQL() + ` WHERE consumer_name = $1::text AND state = 'open' AND gap_position <= $2::bigint AND gap_end >= $2::bigint),
	EXISTS (SELECT FROM ` + t.DeadLetters.SQL() + ` WHERE consumer_name = $1::text AND global_position = $2::bigint),
	coalesce(` + server.Incarnation + `, '')
FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text`
}
