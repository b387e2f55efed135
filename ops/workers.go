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
	// HeartbeatAge is by the database's clock. Below 0, the heartbeat lies in the future: that
	// clock was set back, and the worker has sent none since.
	HeartbeatAge time.Duration
	// HeartbeatTimeout is the age at which the others count it as dead. 0: its program is of an
	// earlier version, which does not say.
	HeartbeatTimeout time.Duration
	CreatedAt        time.Time // when it registered
	// DrainRequested is when an operator asked it to drain, by the database's clock. The zero
	// time: nobody has.
	DrainRequested time.Time
	// Leader reports whether it assigned the consumers, at its last heartbeat.
	Leader bool
	Able   []string // consumers that it has code for, or kinds of jobs; nil: it does not say, as it is of another library
	// Wishes are what its code wishes for where that is not one partition, by consumer. Nil: it
	// says nothing of partitions, as its program is from before there were any.
	Wishes map[string]Wish
	// Scopes are what its code selects of the log, by consumer; one that is not there: it
	// does not say.
	Scopes    map[string]Scope
	Consumers []string        // consumers and units that are assigned to it
	Status    json.RawMessage // what it said of itself at its last heartbeat, as Worker.Status; nil: nothing
}

// Wish is what a worker's code wishes for the partitions of a consumer.
type Wish struct {
	Count int
	Key   string // its name; empty: the aggregate's id
}

// Scope is what a consumer's code selects. Of workers that differ in it, those with the
// highest version, and of these those with the most types, run the consumer.
type Scope struct {
	Types   []string // of aggregates; none: all
	Version int      // of the code, see [consumer.Versioned]
}

// details reads what a worker's row says of its consumers. Of another library it may be
// anything.
func (w *Worker) details(text string) {
	var told map[string]struct {
		Wish
		Scope *Scope
	}
	if json.Unmarshal([]byte(text), &told) != nil || told == nil {
		return
	}
	w.Wishes, w.Scopes = map[string]Wish{}, map[string]Scope{}
	for name, d := range told {
		if d.Wish != (Wish{Count: 1}) {
			w.Wishes[name] = d.Wish
		}
		if d.Scope != nil {
			w.Scopes[name] = *d.Scope
		}
	}
}

// Workers lists the workers that are registered, in order of their heartbeats, the
// latest first. The row of a worker that died stays for twice its HeartbeatTimeout at least. Then the
// leader, or a worker that registers, removes the row.
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

// namesOf are the names of a list, a line each: no name of a consumer has two lines.
func namesOf(list string) []string {
	if list == "" {
		return []string{}
	}
	return strings.Split(list, "\n")
}

// workersSQL has what a worker has code for once for all that have code for the same: a
// hundred workers may have code for a thousand consumers. The first of them has it.
func (o *Operator) workersSQL() string {
	return `
SELECT n.worker_id, coalesce(n.hostname, ''), coalesce(n.pid, 0), coalesce(n.build, ''), coalesce(n.protocol, 0),
	` + liveness.AgeSQL("n") + `, (extract(epoch FROM ` + liveness.TimeoutSQL("n", "interval '0'") + `) * 1000000)::bigint, ` + pgdriver.Time(`n.created_at`) + `, ` + pgdriver.Time(`n.drain_requested_at`) + `,
	coalesce(n.status->'Leader' = 'true'::jsonb, false), n.status::text, n.able, CASE WHEN row_number() OVER (PARTITION BY n.able ORDER BY n.heartbeat_at DESC, n.worker_id) = 1 THEN array_to_string(n.consumers, chr(10)) END, n.partitions::text,
	(SELECT json_agg(a.consumer_name ORDER BY a.consumer_name COLLATE "C") FROM ` + o.t.Assignments.SQL() + ` AS a WHERE a.worker_id = n.worker_id)::text
FROM (SELECT *, hashtextextended(array_to_string(consumers, chr(10)), 0) AS able FROM ` + o.t.Nodes.SQL() + `) AS n ORDER BY n.heartbeat_at DESC, n.worker_id`
}
