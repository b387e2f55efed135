package ops

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// StoppedWorker is a worker that has stopped or died, and whose row was removed.
type StoppedWorker struct {
	ID        uuid.UUID
	Host      string
	PID       int
	Build     string
	StartedAt time.Time // when it registered
	StoppedAt time.Time // when its row was removed, by the database's clock
	// How is "stopped" after Stop or the end of the context of Start, and "failed" after Start has
	// returned an error. It is "drained" after DrainWorker; the process may still run. It is "dead"
	// if the worker sent no heartbeat for twice its HeartbeatTimeout.
	How        string
	DeclaredBy uuid.UUID // of a dead worker: the worker that removed the row; otherwise the zero UUID
}

// StoppedWorkers lists the workers that stopped within the last 15 minutes, the latest first.
// It omits workers whose row was removed by hand or by a build without StoppedWorkers. It also
// omits workers that have registered again.
func (c *core) StoppedWorkers(ctx context.Context) ([]StoppedWorker, error) {
	return read(ctx, c, "list the workers"+c.what+" that stopped", nil, pgdriver.Columns(func(w *StoppedWorker) []any {
		return []any{&w.ID, &w.Host, &w.PID, &w.Build, pgdriver.UTC(&w.StartedAt), pgdriver.UTC(&w.StoppedAt), &w.How, &w.DeclaredBy}
	}), `
SELECT s.worker_id, coalesce(s.hostname, ''), coalesce(s.pid, 0), coalesce(s.build, ''), `+pgdriver.Time(`s.started_at`)+`, s.stopped_at, s.how, s.declared_by
FROM `+c.stopped.SQL()+` AS s
WHERE `+liveness.RecentSQL(`s.stopped_at`)+` AND NOT EXISTS (SELECT FROM `+c.workers.SQL()+` AS n WHERE n.worker_id = s.worker_id)
ORDER BY s.stopped_at DESC, s.worker_id`)
}
