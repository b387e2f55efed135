package sim

import (
	"context"

	"github.com/pgfrontier/worker/sim/history"
)

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
	return ended, err
}

// terminating ends a backend of the worker while a batch is in hand. It is to
// recover by itself.
func terminating(f history.Fault, whose string) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, ctx, intake context.Context, at point) error {
		var ended bool
		var err error
		_, inBatch := s.strike(intake, at, func() { ended, err = s.on.terminate(ctx, s.node.name, whose) })
		if ended {
			s.happened(f, whereabouts(at, inBatch))
		}
		return err
	}
}

// unregister deletes the worker's registration under its hands.
func (s *slot) unregister(ctx, intake context.Context, at point) (err error) {
	struck, inBatch := s.strike(intake, at, func() {
		_, err = s.on.db.ExecContext(ctx, `DELETE FROM worker_nodes WHERE worker_id = $1::uuid`, s.node.id())
	})
	if struck && err == nil {
		s.happened(history.Unregistered, whereabouts(at, inBatch))
	}
	return err
}
