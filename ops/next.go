package ops

import (
	"context"

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
	what := "read the next event of consumer " + errtext.Value(consumer)
	all, err := read(ctx, &o.core, what, checkUnit(consumer), pgdriver.Columns(func(n *Next) []any {
		return []any{&n.Consumer, &n.Checkpoint, &n.Late, &n.Position, &n.AggregateType, &n.AggregateID, &n.EventID, &n.EventType}
	}), o.sql.next, consumer)
	if err == nil && len(all) == 0 {
		err = o.fail(what, errNoCheckpoint)
	}
	return all, err
}
