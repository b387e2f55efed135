package progress

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/store"
)

// Pause is a pause of a consumer.
type Pause struct {
	Since  time.Time
	By     string // an operator, or "worker" and its id
	Reason string
}

// ByWorker reports whether a worker has paused the consumer, not an operator.
func (p *Pause) ByWorker() bool { return strings.HasPrefix(p.By, "worker ") }

// By returns the operator that a worker's own pauses and repairs record.
func By(worker uuid.UUID) string { return "worker " + worker.String() }

// Pause pauses a consumer for all workers. Its progress must be unchanged since the load, and
// the consumer assigned to this worker.
func (c Checkpoints) Pause(ctx context.Context, q store.Querier, unit string, from *State, reason string) (ok bool, err error) {
	result, err := q.ExecContext(ctx, c.pause, unit, from.Revision, By(c.worker), reason)
	if err != nil {
		return false, fmt.Errorf("worker: pause consumer %q: %w", unit, err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
