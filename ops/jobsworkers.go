package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Workers lists the registered workers of jobs in order of their heartbeats, the latest first.
// [Operator.Workers] says when the row of a dead worker is removed. The fields about consumers
// are empty. Able has the kinds of jobs.
func (o *Jobs) Workers(ctx context.Context) ([]Worker, error) {
	all, err := pgdriver.ReadAll(ctx, o.db, func(rows *sql.Rows) (w Worker, err error) {
		var age, timeout int64
		var drain sql.NullTime
		var status, kinds sql.NullString
		err = rows.Scan(&w.ID, &w.Host, &w.PID, &w.Build, &w.Protocol, &age, &timeout, &w.CreatedAt, &drain, &w.Leader, &status, &kinds)
		w.HeartbeatAge, w.HeartbeatTimeout = time.Duration(age)*time.Microsecond, time.Duration(timeout)*time.Microsecond
		w.CreatedAt, w.DrainRequested = w.CreatedAt.UTC(), drain.Time.UTC()
		if status.Valid {
			w.Status = json.RawMessage(status.String)
		}
		if err == nil && kinds.Valid {
			err = json.Unmarshal([]byte(kinds.String), &w.Able)
		}
		return w, err
	}, o.workersSQL())
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the workers of jobs: %w", o.explain(err)))
	}
	return all, nil
}

func (o *Jobs) workersSQL() string {
	return `
SELECT n.worker_id, coalesce(n.hostname, ''), coalesce(n.pid, 0), coalesce(n.build, ''), n.protocol,
	` + liveness.AgeSQL("n") + `, (extract(epoch FROM ` + liveness.TimeoutSQL("n", "interval '0'") + `) * 1000000)::bigint, ` + pgdriver.Time(`n.created_at`) + `, ` + pgdriver.Time(`n.drain_requested_at`) + `,
	coalesce(n.status->'Leader' = 'true'::jsonb, false), n.status::text, to_json(n.kinds)::text
FROM ` + o.t.Workers.SQL() + ` AS n ORDER BY n.heartbeat_at DESC, n.worker_id`
}
