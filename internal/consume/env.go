package consume

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/store"
)

// env is what the parts of a worker share: the database and its log, the units, the frontier, and
// the observers. prepare sets checkpoints, bound, frontier, and the budgets of connections. Other
// goroutines may read them once Worker.ready is closed.
type env struct {
	connections
	unitSet
	reports
	checkpoints progress.Checkpoints
	bound       store.BoundLog
	frontier    *frontier.Frontier
}

// shared is what the loops of a worker share. prepare sets ahead and coord, as it sets the
// fields of env.
type shared struct {
	env
	id         uuid.UUID
	cfg        Config
	barriers   partitions.Barriers
	ahead      *reader.Ahead
	coord      *coord.Coordinator
	awaited    *arrival.Callers
	compactNow *wakeup.Signal // wakes the compaction of the audit table
}

// statements runs the statements of one unit's loop within time limits, which grow while
// the database fails.
type statements struct {
	w     *shared
	unit  *unit
	fails *failure.Tally
}

// quickLimit is the limit for taking a connection, and for a quick statement.
func (s statements) quickLimit() time.Duration { return s.w.limits.after(s.fails.Disturbed) }

// quickly runs a statement that touches a few rows.
func (s statements) quickly(ctx context.Context, statement func(ctx context.Context) error) error {
	return s.w.bounded(ctx, s.quickLimit(), statement)
}

// loadRow loads the row of the unit. If the unit was replaced, the state contains only the
// incarnation.
func (s statements) loadRow(ctx context.Context, q store.Querier) (p *progress.State, replaced bool, err error) {
	p, err = s.w.checkpoints.Load(ctx, q, s.unit.name)
	switch gone := (progress.NoCheckpointError{}); {
	case err == nil && p.Split, s.unit.isPart() && errors.As(err, &gone):
		p = &progress.State{}
		p.Token, err = s.w.checkpoints.Incarnation(ctx, q)
		return p, true, err
	}
	return p, false, err
}
