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

// Gap is a range of positions without an event that a consumer has passed.
type Gap struct {
	ID          int64     // grows
	Consumer    string    // or a unit of it
	Worker      uuid.UUID // the worker that passed it; the zero UUID: an operator
	First, Last int64
	Missing     int64 // number of positions in it without an event
	// State is "void" if no event can appear in the range, and "open" while an event can
	// appear. It is "late" if an event has appeared and was handled.
	State       string
	SkippedTo   int64 // the position to which the consumer moved on
	FirstSeenAt time.Time
	ClosedAt    *time.Time // nil: the gap is open
}

// GapFilter selects gaps. The zero GapFilter selects all gaps.
type GapFilter struct {
	OnlyOpen bool
	Before   int64 // only gaps with a lower ID; 0: all. For the next page, the last ID of this page
}

// Gaps lists the gaps of a consumer and its units, or of one unit, the newest first. limit is 1
// to 10,000. Closed gaps are merged, and deleted later, see GapSkipRetention. To list the gaps
// of a unit that was replaced, pass the unit's name.
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

// gapsSQL reads the newest gaps of each unit through an index. With "= ANY", only this index
// returns the rows in the required order.
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

// namesSQL selects the consumer or unit $1, and the current units of the consumer.
func (o *Operator) namesSQL() string {
	return `SELECT $1::text AS name UNION SELECT consumer_name FROM ` + o.t.Checkpoints.SQL() + ` WHERE ` + unitsOf
}
