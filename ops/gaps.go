package ops

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Gap is a range of positions without an event that a consumer went past.
type Gap struct {
	ID          int64     // grows
	Consumer    string    // or a unit of it
	Worker      uuid.UUID // that went past it; the zero UUID: an operator did
	First, Last int64
	Missing     int64 // positions in it without an event
	// State is "void" if no event can appear there, "open" while one can, and "late"
	// if one has appeared and was handled.
	State       string
	SkippedTo   int64 // where the consumer went
	FirstSeenAt time.Time
	ClosedAt    *time.Time // nil: it is open
}

// GapFilter says which gaps. The zero GapFilter is all of them.
type GapFilter struct {
	OnlyOpen bool
	Before   int64 // only those with a lower ID; 0: all. For the next page, the last ID of this one.
}

// Gaps lists the gaps of a consumer and of its units, or of one unit, the newest
// first. limit is 1 to 10,000. Closed ones are merged and deleted after a while, see
// GapSkipRetention. For a unit that was replaced, give its name.
func (o *Operator) Gaps(ctx context.Context, consumer string, f GapFilter, limit int) ([]Gap, error) {
	err := errtext.Join(checkUnit(consumer), checkLimit(limit))
	var all []Gap
	if f.Before == 0 {
		f.Before = math.MaxInt64
	}
	if err == nil {
		all, err = pgdriver.ReadAll(ctx, o.db, func(rows *sql.Rows) (g Gap, err error) {
			var closed sql.NullTime
			err = rows.Scan(&g.ID, &g.Consumer, &g.Worker, &g.First, &g.Last, &g.Missing, &g.State, &g.SkippedTo, &g.FirstSeenAt, &closed)
			g.FirstSeenAt, g.ClosedAt = g.FirstSeenAt.UTC(), timeOf(closed)
			return g, err
		}, o.gapsSQL(f.OnlyOpen), consumer, f.Before, limit)
	}
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the gaps of consumer %s: %w", errtext.Value(consumer), explain(err)))
	}
	return all, nil
}

// gapsSQL takes the newest of each unit by an index. With "= ANY" only the right one has
// the rows in the order that is asked for.
func (o *Operator) gapsSQL(onlyOpen bool) string {
	open := ``
	if onlyOpen {
		open = ` AND s.state = 'open'`
	}
	return `
SELECT g.id, g.consumer_name, g.worker_id, g.gap_position, coalesce(g.gap_end, g.gap_position), coalesce(g.missing, 1), g.state, g.skip_to_position, ` + pgdriver.Time(`g.first_seen_at`) + `, ` + pgdriver.Time(`g.closed_at`) + `
FROM (` + o.namesSQL() + `) AS u CROSS JOIN LATERAL (
	SELECT * FROM ` + o.t.GapSkips.SQL() + ` AS s
	WHERE s.consumer_name = ANY (ARRAY[u.name]) AND s.id < $2::bigint` + open + `
	ORDER BY s.consumer_name DESC, s.id DESC LIMIT $3::bigint
) AS g
ORDER BY g.id DESC LIMIT $3::bigint`
}

// namesSQL has the consumer $1, or the unit, and the units that the consumer has now.
func (o *Operator) namesSQL() string {
	return `SELECT $1::text AS name UNION SELECT consumer_name FROM ` + o.t.Checkpoints.SQL() + ` WHERE ` + unitsOf
}
