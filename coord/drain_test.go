package coord

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// A worker that an operator has asked to drain is assigned nothing, even before it has read
// the request.
func TestWorkerAskedToDrainGetsNoUnit(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, d *pgtest.Database, leased bool) {
		mustExec(t, d.DB, `INSERT INTO worker_nodes (worker_id, heartbeat_timeout, consumers, protocol, drain_requested_at) VALUES ($1, '1 hour', $2::text[], 1, now())`, uuid.New().String(), `{Billing,Orders}`)
		w := start(t, withLease(brisk(config(d.DB, "Billing", "Orders")), leased))
		w.awaitAssigned("Billing", "Orders")
	})
}
