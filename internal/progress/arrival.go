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

// Arrival says whether a consumer has handled a position, and why not.
type Arrival struct {
	Handled    bool
	Unknown    bool  // the consumer has no checkpoint
	Position   int64 // of the unit with the lowest position
	Paused     bool  // some unit is paused
	Open       bool  // a unit has passed the position while it was in doubt
	DeadLetter bool  // the event is among the dead letters
	Replayed   bool  // the event waits for the replay of its aggregate
	Split      bool  // the consumer has parts
}

// Why returns the reason why the consumer has not handled the position, as an error.
func (a Arrival) Why() error {
	switch {
	case a.Unknown:
		return errors.New("it has no checkpoint, no worker has run it yet")
	case a.Paused:
		return fmt.Errorf("it is paused at position %d", a.Position)
	case a.Replayed:
		return errors.New("the event's aggregate is replayed")
	case a.Open:
		return errors.New("no event has appeared there yet, its transaction may be open")
	}
	return fmt.Errorf("it is at position %d", a.Position)
}

// Arrived reads whether a consumer has handled a position, and the incarnation of the server
// that answers.
func (c Checkpoints) Arrived(ctx context.Context, q store.Querier, unit string, position int64) (a Arrival, token string, err error) {
	err = q.QueryRowContext(ctx, c.arrived, unit, position).Scan(&a.Position, &a.Paused, &a.Open, &a.DeadLetter, &a.Replayed, &a.Split, &token)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Arrival{Unknown: true}, "", nil
	case err != nil:
		return a, "", fmt.Errorf("worker: read the position of consumer %s: %w", errtext.Value(unit), err)
	}
	a.Handled = a.Position >= position && !a.Open && !a.DeadLetter && !a.Replayed
	return a, token, nil
}

// Known reports whether a worker has registered code for a consumer.
func (c Checkpoints) Known(ctx context.Context, q store.Querier, unit string) (known bool, err error) {
	if err = q.QueryRowContext(ctx, c.known, unit).Scan(&known); err != nil {
		return false, fmt.Errorf("worker: find the workers with code for consumer %s: %w", errtext.Value(unit), err)
	}
	return known, nil
}

func known(t tables.Tables) string {
	return `SELECT EXISTS (SELECT FROM ` + t.Nodes.SQL() + ` WHERE $1::text = ANY (consumers))`
}

// arrived reads all units of a consumer in one snapshot. Every unit must have passed the
// position, because only the consumer's key tells the unit of the event. The own row of a
// split consumer is ignored.
func arrived(t tables.Tables, server Server) string {
	checkpoints := t.Checkpoints.SQL()
	return `
SELECT min(u.last_position), bool_or(u.paused_at IS NOT NULL),
	bool_or(EXISTS (SELECT FROM ` + t.GapSkips.SQL() + ` AS s WHERE s.consumer_name = u.consumer_name AND s.state = 'open' AND s.gap_position <= $2::bigint AND s.gap_end >= $2::bigint)),
	bool_or(EXISTS (SELECT FROM ` + t.DeadLetters.SQL() + ` AS l WHERE l.consumer_name = u.consumer_name AND l.global_position = $2::bigint AND NOT l.replay)),
	bool_or(EXISTS (SELECT FROM ` + t.DeadLetters.SQL() + ` AS l WHERE l.consumer_name = u.consumer_name AND l.global_position = $2::bigint AND l.replay)),
	count(*) > 1, coalesce(` + server.Incarnation + `, '')
FROM (
	SELECT consumer_name, last_position, paused_at FROM ` + checkpoints + ` WHERE consumer_name = $1::text AND split_at IS NULL
	UNION ALL
	SELECT c.consumer_name, c.last_position, c.paused_at FROM ` + checkpoints + ` AS own
	JOIN ` + checkpoints + ` AS c ON left(c.consumer_name, length($1::text) + 1) = $1::text || '#'
	WHERE own.consumer_name = $1::text AND own.split_at IS NOT NULL
) AS u
HAVING count(*) > 0`
}
