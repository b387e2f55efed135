package ops

import (
	"cmp"
	"context"
	"math"
	"strings"
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
	return read(ctx, &o.core, "list the gaps of consumer "+errtext.Value(consumer), errtext.Join(checkUnit(consumer), checkLimit(limit)),
		pgdriver.Columns(func(g *Gap) []any {
			return []any{&g.ID, &g.Consumer, &g.Worker, &g.First, &g.Last, &g.Missing, &g.State, &g.SkippedTo, pgdriver.UTC(&g.FirstSeenAt), pgdriver.UTCOrNil(&g.ClosedAt)}
		}), o.gapsSQL(f.OnlyOpen), consumer, cmp.Or(f.Before, math.MaxInt64), limit)
}

func (o *Operator) gapsSQL(onlyOpen bool) string {
	open := ``
	if onlyOpen {
		open = ` AND s.state = 'open'`
	}
	return strings.ReplaceAll(o.sql.gaps, "{conditions}", open)
}
