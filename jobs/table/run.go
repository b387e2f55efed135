package table

import (
	"sync/atomic"
	"time"

	"github.com/pgfrontier/worker/internal/jobrun"
	"github.com/pgfrontier/worker/internal/queue"
)

// claim is, with the worker, the fence of a run: a statement that changes the row must name it. Its
// Claim is the microsecond of started_at.
type claim = queue.Run

// run is a job that this worker has claimed.
type run struct {
	jobrun.Run
	env    *env
	header Header
	job    any         // a *Job of the handler; nil before it is read
	server string      // start time of the server with the claim; only heartbeats change it
	missed time.Time   // when a heartbeat first did not find the claim; only heartbeats change it
	byTx   atomic.Bool // CompleteTx was called
}

// isLost reports whether the job is lost after a heartbeat that has not found the claim. On another
// server than the claim's, the job is not lost at first, see Failover. That server may have been
// restarted or be gone, so after a while the job is lost.
func (r *run) isLost(server string, while time.Duration) bool {
	if r.missed.IsZero() {
		r.missed = time.Now()
	}
	return r.server == server || time.Since(r.missed) >= while
}
