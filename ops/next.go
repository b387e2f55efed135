package ops

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Next is the next event of a consumer or of a unit.
type Next struct {
	Consumer   string // or a unit of it
	Checkpoint int64
	// Position is the argument for SkipEvent if the consumer is stuck there, or paused. If it
	// is 0, there is no next event at the moment, and the other fields are zero.
	Position      int64
	Late          bool // it has become visible below the checkpoint
	EventID       uuid.UUID
	EventType     string
	AggregateType string
	AggregateID   string
}

// Next returns the next event of a consumer or a unit. For a split consumer, it returns the
// next event of each unit. The next event is the first late one. If there is none, it is the
// first above the checkpoint. It may be an event that the consumer skips, since it has another
// type or belongs to another unit. [Operator.Event] has the payload.
func (o *Operator) Next(ctx context.Context, consumer string) ([]Next, error) {
	err := checkUnit(consumer)
	var all []Next
	if err == nil {
		all, err = pgdriver.ReadAll(ctx, o.db, func(rows *sql.Rows) (n Next, err error) {
			return n, rows.Scan(&n.Consumer, &n.Checkpoint, &n.Late, &n.Position, &n.AggregateType, &n.AggregateID, &n.EventID, &n.EventType)
		}, o.nextSQL(), consumer)
	}
	if err == nil && len(all) == 0 {
		err = ErrNoCheckpoint
	}
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: read the next event of consumer %s: %w", errtext.Value(consumer), explain(err)))
	}
	return all, nil
}

func (o *Operator) nextSQL() string {
	return `
SELECT c.consumer_name, c.last_position, coalesce(n.late, false), coalesce(n.position, 0), coalesce(n.aggregate_type, ''), coalesce(n.aggregate_id, ''),
	coalesce(n.event_id, '` + uuid.Nil.String() + `'::uuid), coalesce(n.event_type, '')
FROM (` + o.namesSQL() + `) AS u
JOIN ` + o.t.Checkpoints.SQL() + ` AS c ON c.consumer_name = u.name AND c.split_at IS NULL
LEFT JOIN LATERAL (
	SELECT * FROM (
		(SELECT true AS late, e.` + positionColumn + ` AS position, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type
		FROM ` + o.t.GapSkips.SQL() + ` AS s CROSS JOIN LATERAL (
			SELECT * FROM ` + o.t.Events.SQL() + `
			WHERE ` + positionColumn + ` BETWEEN s.gap_position AND s.gap_end ORDER BY ` + positionColumn + ` LIMIT 1
		) AS e
		WHERE s.consumer_name = c.consumer_name AND s.state = 'open' ORDER BY e.` + positionColumn + ` LIMIT 1)
		UNION ALL
		(SELECT false, e.` + positionColumn + `, e.aggregate_type, e.aggregate_id, e.event_id, e.event_type FROM ` + o.t.Events.SQL() + ` AS e
		WHERE e.` + positionColumn + ` > c.last_position ORDER BY e.` + positionColumn + ` LIMIT 1)
	) AS found ORDER BY NOT late LIMIT 1
) AS n ON true
ORDER BY c.consumer_name COLLATE "C"`
}
