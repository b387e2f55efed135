package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Worker is a row of the table of workers.
type Worker struct {
	ID           uuid.UUID
	Host         string
	PID          int
	Build        string
	Protocol     int
	HeartbeatAge time.Duration // by the database's clock
	CreatedAt    time.Time     // when it registered
	// Leader reports whether it assigned the consumers, at its last heartbeat.
	Leader    bool
	Able      []string        // consumers that it has code for; nil: it does not say, as it is of another library
	Consumers []string        // consumers and units that are assigned to it
	Status    json.RawMessage // what it said of itself at its last heartbeat, as Worker.Status; nil: nothing
}

// Workers lists the workers that are registered, in order of their heartbeats, the
// latest first. One that has died is removed within twice the HeartbeatTimeout.
func (o *Operator) Workers(ctx context.Context) ([]Worker, error) {
	all, err := pgdriver.QueryAll(ctx, o.db, func(rows *sql.Rows) (w Worker, err error) {
		var age int64
		var status, able, consumers sql.NullString
		err = rows.Scan(&w.ID, &w.Host, &w.PID, &w.Build, &w.Protocol, &age, &w.CreatedAt, &w.Leader, &status, &able, &consumers)
		w.HeartbeatAge, w.CreatedAt = time.Duration(age)*time.Microsecond, w.CreatedAt.UTC()
		if status.Valid {
			w.Status = json.RawMessage(status.String)
		}
		for _, list := range []struct {
			text sql.NullString
			into *[]string
		}{{able, &w.Able}, {consumers, &w.Consumers}} {
			if err == nil && list.text.Valid {
				err = json.Unmarshal([]byte(list.text.String), list.into)
			}
		}
		return w, err
	}, o.workersSQL())
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the workers: %w", explain(err)))
	}
	return all, nil
}

func (o *Operator) workersSQL() string {
	return `
SELECT n.worker_id, coalesce(n.hostname, ''), coalesce(n.pid, 0), coalesce(n.build, ''), coalesce(n.protocol, 0),
	greatest(extract(epoch FROM clock_timestamp() - n.heartbeat_at) * 1000000, 0)::bigint, n.created_at,
	coalesce(n.status->'Leader' = 'true'::jsonb, false), n.status::text, to_json(n.consumers)::text,
	(SELECT json_agg(a.consumer_name ORDER BY a.consumer_name COLLATE "C") FROM ` + o.t.Assignments.SQL() + ` AS a WHERE a.worker_id = n.worker_id)::text
FROM ` + o.t.Nodes.SQL() + ` AS n ORDER BY n.heartbeat_at DESC, n.worker_id`
}
