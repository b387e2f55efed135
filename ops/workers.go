package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Worker is a row of the table of workers.
type Worker struct {
	ID       uuid.UUID
	Host     string
	PID      int
	Build    string
	Protocol int
	// HeartbeatAge is the age of the last heartbeat, by the database's clock. It is below 0 if
	// that clock was set back and the worker has sent no heartbeat since.
	HeartbeatAge time.Duration
	// HeartbeatTimeout is the age of a heartbeat from which on other workers treat the worker
	// as dead. It is 0 for a worker of an earlier version, which does not report it.
	HeartbeatTimeout time.Duration
	CreatedAt        time.Time // when it registered
	// DrainRequested is when an operator asked the worker to drain, by the database's clock.
	// The zero time means no request.
	DrainRequested time.Time
	// Leader reports whether the worker was the leader at its last heartbeat.
	Leader bool
	Able   []string // consumers or kinds of jobs for which it has code; nil: not reported, as by another library
	// Wishes is the partition demand of the worker's code, by consumer. Consumers with a demand
	// of one partition are left out. It is nil for a build without partition support.
	Wishes map[string]Wish
	// Scopes is the selection of the worker's code, by consumer. A consumer is missing if the
	// worker does not report its selection.
	Scopes    map[string]Scope
	Consumers []string        // its consumers and units
	Status    json.RawMessage // its Worker.Status at its last heartbeat; nil: none
}

// Wish is the partition demand of a worker's code for a consumer.
type Wish struct {
	Count int
	Key   string // name of the key; empty: the aggregate's id
}

// Scope is the part of the log that a consumer's code selects. If workers differ, only
// workers with the highest version run the consumer. Of these, only workers with the most types
// do.
type Scope struct {
	Types   []string // aggregate types; empty: all
	Version int      // of the code, see [consumer.Versioned]
}

// details parses the column details of a worker's row. A worker of another library may have
// stored any text.
func (w *Worker) details(text string) {
	var details map[string]struct {
		Wish
		Scope *Scope
	}
	if json.Unmarshal([]byte(text), &details) != nil || details == nil {
		return
	}
	w.Wishes, w.Scopes = map[string]Wish{}, map[string]Scope{}
	for name, d := range details {
		if d.Wish != (Wish{Count: 1}) {
			w.Wishes[name] = d.Wish
		}
		if d.Scope != nil {
			w.Scopes[name] = *d.Scope
		}
	}
}

// Workers lists the registered workers in order of their heartbeats, the latest first. The row
// of a dead worker stays for at least twice its HeartbeatTimeout. Then the leader, or a worker
// that registers, removes the row.
func (o *Operator) Workers(ctx context.Context) ([]Worker, error) {
	sets := map[int64][]string{}
	all, err := pgdriver.ReadAll(ctx, o.db, func(rows *sql.Rows) (w Worker, err error) {
		var age, timeout int64
		var set sql.NullInt64
		var status, able, wishes, consumers sql.NullString
		var drain sql.NullTime
		err = rows.Scan(&w.ID, &w.Host, &w.PID, &w.Build, &w.Protocol, &age, &timeout, &w.CreatedAt, &drain, &w.Leader, &status, &set, &able, &wishes, &consumers)
		w.DrainRequested = drain.Time.UTC()
		w.HeartbeatAge, w.HeartbeatTimeout = time.Duration(age)*time.Microsecond, time.Duration(timeout)*time.Microsecond
		w.CreatedAt = w.CreatedAt.UTC()
		if status.Valid {
			w.Status = json.RawMessage(status.String)
		}
		if able.Valid {
			sets[set.Int64] = namesOf(able.String)
		}
		if set.Valid {
			w.Able = slices.Clone(sets[set.Int64])
		}
		w.details(wishes.String)
		if err == nil && consumers.Valid {
			err = json.Unmarshal([]byte(consumers.String), &w.Consumers)
		}
		return w, err
	}, o.workersSQL())
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the workers: %w", explain(err)))
	}
	return all, nil
}

// namesOf splits a list with one name a line. No name of a consumer contains a line break.
func namesOf(list string) []string {
	if list == "" {
		return []string{}
	}
	return strings.Split(list, "\n")
}

// workersSQL returns equal lists of consumers once, in the row of the first worker that has the
// list. A hundred workers may have code for the same thousand consumers.
func (o *Operator) workersSQL() string {
	return `
SELECT n.worker_id, coalesce(n.hostname, ''), coalesce(n.pid, 0), coalesce(n.build, ''), coalesce(n.protocol, 0),
	` + liveness.AgeSQL("n") + `, (extract(epoch FROM ` + liveness.TimeoutSQL("n", "interval '0'") + `) * 1000000)::bigint, ` + pgdriver.Time(`n.created_at`) + `, ` + pgdriver.Time(`n.drain_requested_at`) + `,
	coalesce(n.status->'Leader' = 'true'::jsonb, false), n.status::text, n.able, CASE WHEN row_number() OVER (PARTITION BY n.able ORDER BY n.heartbeat_at DESC, n.worker_id) = 1 THEN array_to_string(n.consumers, chr(10)) END, n.partitions::text,
	(SELECT json_agg(a.consumer_name ORDER BY a.consumer_name COLLATE "C") FROM ` + o.t.Assignments.SQL() + ` AS a WHERE a.worker_id = n.worker_id)::text
FROM (SELECT *, hashtextextended(array_to_string(consumers, chr(10)), 0) AS able FROM ` + o.t.Nodes.SQL() + `) AS n ORDER BY n.heartbeat_at DESC, n.worker_id`
}
