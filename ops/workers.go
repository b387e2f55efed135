package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

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
	// Demands is the partition demand of the worker's code, by consumer. Consumers with a demand
	// of one partition are left out. It is nil for a build without partition support.
	Demands map[string]Demand
	// Scopes is the selection of the worker's code, by consumer. A consumer is missing if the
	// worker does not report its selection.
	Scopes    map[string]Scope
	Consumers []string        // its consumers and units
	Status    json.RawMessage // its Worker.Status at its last heartbeat; nil: none
}

// Demand is the partition demand of a worker's code for a consumer.
type Demand struct {
	Count int
	Key   string // name of the key; empty: the aggregate's id
}

// Scope is the part of the log that a consumer's code selects. If workers differ, only
// workers with the highest version run the consumer. Of these, only workers with the most types
// do.
type Scope struct {
	Types   []string // aggregate types; empty: all
	Version int      // of the code, see [consumer.Versioned]
	Start   string   // where a new consumer begins: a position, or "head"; empty: at the first event

	Projection string // see [consumer.Projected]; empty: none
}

// details parses the column details of a worker's row. A worker of another library may have
// stored any text.
func (w *Worker) details(text string) {
	var details map[string]struct {
		Demand
		Scope *Scope
	}
	if json.Unmarshal([]byte(text), &details) != nil || details == nil {
		return
	}
	w.Demands, w.Scopes = map[string]Demand{}, map[string]Scope{}
	for name, d := range details {
		if d.Demand != (Demand{Count: 1}) {
			w.Demands[name] = d.Demand
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
	return read(ctx, &o.core, "list the workers", nil, func(rows *sql.Rows) (w Worker, err error) {
		var set sql.NullInt64
		var able, wishes sql.NullString
		err = rows.Scan(append(w.columns(), &set, &able, &wishes, pgdriver.JSON(&w.Consumers))...)
		if able.Valid {
			sets[set.Int64] = namesOf(able.String)
		}
		if set.Valid {
			w.Able = slices.Clone(sets[set.Int64])
		}
		w.details(wishes.String)
		return w, err
	}, o.sql.workers)
}

// columns returns the destinations of the columns that workers of consumers and of jobs share.
func (w *Worker) columns() []any {
	return []any{&w.ID, &w.Host, &w.PID, &w.Build, &w.Protocol, pgdriver.Duration(&w.HeartbeatAge), pgdriver.Duration(&w.HeartbeatTimeout),
		pgdriver.UTC(&w.CreatedAt), pgdriver.UTC(&w.DrainRequested), &w.Leader, pgdriver.RawJSON(&w.Status)}
}

// namesOf splits a list with one name a line. No name of a consumer contains a line break.
func namesOf(list string) []string {
	if list == "" {
		return []string{}
	}
	return strings.Split(list, "\n")
}
