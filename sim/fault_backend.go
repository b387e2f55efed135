package sim

import (
	"context"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

const (
	batchBackendsEnded    history.Fault = "backends ended, of a batch"
	lockBackendsEnded     history.Fault = "backends ended, with a worker's or the leader's lock"
	frontierBackendsEnded history.Fault = "backends ended, of a frontier"
	listenerBackendsEnded history.Fault = "backends ended, of a listener"
)

// backendFaults end one backend of the server.
var backendFaults = []faultRow{
	{
		Row: fault.Row{
			Name: "kill-batch", Does: "ends the server's backend of a batch",
			Counts:  []history.Fault{batchBackendsEnded},
			Reaches: []oracle.Condition{oracle.BrokenBatches},
		},
		worker: at(terminating(batchBackendsEnded, ofABatch), afterEffect),
	},
	{
		Row: fault.Row{
			Name: "kill-lock", Does: "ends the backend that holds a worker's or the leader's lock",
			Counts: []history.Fault{lockBackendsEnded},
		},
		worker: at(terminating(lockBackendsEnded, ofTheLocks), afterEffect),
	},
	{
		Row: fault.Row{
			Name: "kill-scan", Does: "ends the backend that a frontier looks through",
			Counts: []history.Fault{frontierBackendsEnded},
		},
		worker: at(terminating(frontierBackendsEnded, ofTheScanner), afterGuard, afterEffect),
	},
	{
		Row: fault.Row{
			Name: "kill-listener", Does: "ends the backend of a worker's listener",
			Counts: []history.Fault{listenerBackendsEnded},
		},
		listens: true,
		worker:  at(terminating(listenerBackendsEnded, ofTheListener), afterGuard),
	},
}

// Whose backends an administrator, or a failing server, ends: conditions on
// pg_stat_activity.
const (
	ofABatch      = `backend_xid IS NOT NULL`
	ofTheLocks    = `xact_start IS NULL AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)`
	ofTheListener = `query LIKE 'LISTEN %'`
	ofTheScanner  = `query LIKE '%last_value%' AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)`
)

// terminate ends one backend of a worker. It reports whether there was one.
func (d *database) terminate(ctx context.Context, who, whose string) (ended bool, err error) {
	err = d.db.QueryRowContext(ctx, `
SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM (
	SELECT pid FROM pg_stat_activity
	WHERE datname = current_database() AND application_name = $1::text AND `+whose+`
	LIMIT 1) AS victim`, "sim "+who).Scan(&ended)
	return ended, d.mine(ctx, err)
}

// terminating ends a backend of the worker while a batch is in hand. It is to
// recover by itself.
func terminating(f history.Fault, whose string) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, ctx, intake context.Context, at point) error {
		var ended bool
		var err error
		_, inBatch := s.inject(intake, at, func() { ended, err = s.on.terminate(ctx, s.node.name, whose) })
		if ended {
			s.happened(f, whereabouts(at, inBatch))
		}
		return err
	}
}
