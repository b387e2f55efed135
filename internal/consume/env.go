package consume

import (
	"github.com/google/uuid"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/arrival"
	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/wakeup"
	"github.com/pgfrontier/worker/store"
)

// env is what the parts of a worker share: the database and its log, the units, the frontier, and
// the observers.
type env struct {
	connections
	unitSet
	reports
	checkpoints progress.Checkpoints
	bound       store.BoundLog
	frontier    *frontier.Frontier
}

// shared is what the loops of a worker share.
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
