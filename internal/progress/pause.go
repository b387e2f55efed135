package progress

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/tables"
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

func (c Checkpoints) operator() string { return By(c.worker) }

// Pause pauses a consumer for all workers. Its progress must be unchanged since the load, and
// the consumer assigned to this worker.
func (c Checkpoints) Pause(ctx context.Context, q store.Querier, unit string, from *State, reason string) (ok bool, err error) {
	result, err := q.ExecContext(ctx, c.pause, unit, from.Revision, c.operator(), reason)
	if err != nil {
		return false, fmt.Errorf("worker: pause consumer %q: %w", unit, err)
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

func pausing(t tables.Tables) string {
	return `
WITH paused AS (
	UPDATE ` + t.Checkpoints.SQL() + `
	SET paused_at = clock_timestamp(), paused_by = $3::text, paused_reason = $4::text, revision = revision + 1, updated_at = clock_timestamp()
	WHERE consumer_name = $1::text AND revision = $2::bigint AND paused_at IS NULL
		AND EXISTS (SELECT FROM ` + t.Assignments.SQL() + ` WHERE consumer_name = $1::text AND 'worker ' || worker_id = $3::text)
	RETURNING consumer_name
)
INSERT INTO ` + t.Operations.SQL() + ` (consumer_name, operation, detail, operator, reason)
SELECT consumer_name, 'pause', '{}', $3::text, $4::text FROM paused`
}
