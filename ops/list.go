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

// Consumer is how a consumer stands.
type Consumer struct {
	Name        string
	Position    int64     // the checkpoint
	HeadLag     int64     // positions above it, up to the highest visible event
	Revision    int64     // counts every change of its progress
	UpdatedAt   time.Time // of the last change
	Paused      *Pause    // nil: it is not paused
	Worker      uuid.UUID // that it is assigned to; the zero UUID: none
	OpenRanges  int64     // ranges of positions that it passed while they were in doubt
	DeadLetters int64
}

// Consumers lists the consumers that have ever run, in order of name, as one
// snapshot shows them.
func (o *Operator) Consumers(ctx context.Context) ([]Consumer, error) {
	all, err := pgdriver.QueryAll(ctx, o.db, func(rows *sql.Rows) (c Consumer, err error) {
		var since sql.NullTime
		var by, reason sql.NullString
		err = rows.Scan(&c.Name, &c.Position, &c.HeadLag, &c.Revision, &c.UpdatedAt, &since, &by, &reason, &c.Worker, &c.OpenRanges, &c.DeadLetters)
		c.UpdatedAt = c.UpdatedAt.UTC()
		c.Paused = pauseOf(since, by, reason)
		return c, err
	}, `
SELECT c.consumer_name, c.last_position,
	greatest((SELECT coalesce(max(`+positionColumn+`), 0) FROM `+o.t.Events.SQL()+`) - c.last_position, 0), c.revision, c.updated_at, c.paused_at, c.paused_by, c.paused_reason, a.worker_id,
	(SELECT count(*) FROM `+o.t.GapSkips.SQL()+` AS s WHERE s.consumer_name = c.consumer_name AND s.state = 'open'),
	(SELECT count(*) FROM `+o.t.DeadLetters.SQL()+` AS l WHERE l.consumer_name = c.consumer_name)
FROM `+o.t.Checkpoints.SQL()+` AS c LEFT JOIN `+o.t.Assignments.SQL()+` AS a ON a.consumer_name = c.consumer_name
ORDER BY c.consumer_name COLLATE "C"`)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the consumers: %w", explain(err)))
	}
	return all, nil
}

// Kind is what an operation does.
type Kind string

const (
	KindPause   Kind = "pause"
	KindResume  Kind = "resume"
	KindReset   Kind = "reset"
	KindSkip    Kind = "skip"
	KindRetry   Kind = "retry"   // dead letters
	KindDiscard Kind = "discard" // a dead letter
	KindRetire  Kind = "retire"
	KindRepair  Kind = "repair" // by a worker: a checkpoint set back that a handler had committed
)

// These are on jobs and queues; so are KindPause and KindResume of a queue or a
// schedule, KindRetire of a schedule, KindRetry and KindDiscard of a job. KindCancel and
// KindRetry are on runs of flows too: their detail has the run.
const (
	KindCap       Kind = "cap"
	KindRetention Kind = "retention"
	KindCancel    Kind = "cancel"
	KindRerun     Kind = "rerun" // a retry that was insisted on
)

// Operation is an operation as it was recorded.
type Operation struct {
	ID       int64 // grows, also from one consumer to the other
	Consumer string
	Kind     Kind
	Detail   json.RawMessage // an object; what is in it depends on the kind
	By       By
	At       time.Time // by the database's clock
}

// maxOperations is how many Operations returns at most.
const maxOperations = 10_000

// Operations lists the latest operations on a consumer, the newest first. If
// consumer is empty, it lists those on all consumers. limit is 1 to 10,000.
func (o *Operator) Operations(ctx context.Context, consumer string, limit int) ([]Operation, error) {
	if limit < 1 || limit > maxOperations {
		return nil, fmt.Errorf("ops: list the operations: %w: limit is %d, allowed is 1 to %d", ErrInvalid, limit, maxOperations)
	}
	all, err := listOf(ctx, o.db, consumer, func(rows *sql.Rows) (op Operation, err error) {
		var detail string
		err = rows.Scan(&op.ID, &op.Consumer, &op.Kind, &detail, &op.By.Operator, &op.By.Reason, &op.At)
		op.Detail, op.At = json.RawMessage(detail), op.At.UTC()
		return op, err
	}, `
SELECT id, consumer_name, operation, coalesce(detail, '{}')::text, operator, reason, created_at
FROM `+o.t.Operations.SQL()+` WHERE $1::text IN ('', consumer_name)
ORDER BY id DESC LIMIT $2::bigint`, limit)
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the operations: %w", explain(err)))
	}
	return all, nil
}

// listOf is list of what belongs to a consumer, to all if it is empty. The query
// takes it as $1.
func listOf[T any](ctx context.Context, db *sql.DB, consumer string, scan func(*sql.Rows) (T, error), query string, args ...any) ([]T, error) {
	if consumer != "" {
		if err := checkConsumer(consumer); err != nil {
			return nil, err
		}
	}
	return pgdriver.QueryAll(ctx, db, scan, query, append([]any{consumer}, args...)...)
}

func timeOf(t sql.NullTime) *time.Time {
	if !t.Valid {
		return nil
	}
	utc := t.Time.UTC()
	return &utc
}

func pauseOf(since sql.NullTime, by, reason sql.NullString) *Pause {
	if !since.Valid {
		return nil
	}
	return &Pause{Since: since.Time.UTC(), By: By{Operator: by.String, Reason: reason.String}}
}
