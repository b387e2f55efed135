package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// Consumer is the state of a consumer. If the consumer is split, the fields sum up its units.
type Consumer struct {
	Name     string
	Position int64 // the checkpoint; of a split consumer, the lowest of its units
	HeadLag  int64 // number of positions above Position, up to the highest visible event
	// OldestAge is how long the first event above Position has been waiting, by the database's
	// clock. It is 0 if there is no event. If the consumer names types or is split, this event
	// may belong to another type or unit. The first event of its own is then no older. Only the
	// consumer's code knows its types.
	OldestAge   time.Duration
	Revision    int64     // it changes with every change of the progress, also of the progress of a unit
	UpdatedAt   time.Time // when the progress last changed
	Paused      *Pause    // nil: at least one of its units is not paused
	Worker      uuid.UUID // its worker; the zero UUID: none, or several
	OpenRanges  int64     // ranges of positions that it has passed in doubt
	DeadLetters int64

	Scope *Scope // of the code that runs it, or ran it last; if it is split, of its first unit; nil: not recorded

	Units  []Unit // of a split consumer, in order; empty: it is not split
	Wanted int    // number of partitions to which the workers are changing it; 0: no change
	Fixed  int    // number of partitions fixed by an operator, see Partition; 0: none
}

// Unit is a part of a split consumer.
type Unit struct {
	Name        string // "totals_v1#400-7ff", as Pause, Resume and SkipEvent take it
	Partition   string // "400-7ff"
	Key         string // name of the key by which it is split; empty: the aggregate's id
	Position    int64
	HeadLag     int64
	OldestAge   time.Duration
	Revision    int64
	Paused      *Pause
	Worker      uuid.UUID
	OpenRanges  int64
	DeadLetters int64
}

// Consumers lists the consumers that have ever run, in order of name, from one snapshot.
func (o *Operator) Consumers(ctx context.Context) ([]Consumer, error) {
	rows, err := pgdriver.ReadAll(ctx, o.db, func(rows *sql.Rows) (r consumerRow, err error) {
		var since sql.NullTime
		var by, reason sql.NullString
		c := &r.Consumer
		var age int64
		var scope sql.NullString
		err = rows.Scan(&c.Name, &c.Position, &c.HeadLag, &age, &c.Revision, &c.UpdatedAt, &since, &by, &reason, &c.Worker, &c.OpenRanges, &c.DeadLetters, &c.Wanted, &c.Fixed, &r.split, &r.key, &scope)
		c.OldestAge, c.UpdatedAt = time.Duration(age)*time.Microsecond, c.UpdatedAt.UTC()
		c.Paused = pauseOf(since, by, reason)
		if err == nil && scope.Valid {
			err = json.Unmarshal([]byte(scope.String), &c.Scope)
		}
		return r, err
	}, o.consumersSQL())
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the consumers: %w", explain(err)))
	}
	return consumersOf(rows), nil
}

func (o *Operator) consumersSQL() string {
	return `
SELECT c.consumer_name, c.last_position,
	greatest((SELECT coalesce(max(` + positionColumn + `), 0) FROM ` + o.t.Events.SQL() + `) - c.last_position, 0),
	coalesce((
		SELECT CASE WHEN isfinite(e.created_at) THEN least(greatest(extract(epoch FROM statement_timestamp() - e.created_at), 0), 3155760000) * 1000000 END
		FROM ` + o.t.Events.SQL() + ` AS e WHERE e.` + positionColumn + ` > c.last_position ORDER BY e.` + positionColumn + ` LIMIT 1), 0)::bigint, c.revision, ` + pgdriver.Time(`c.updated_at`) + `, ` + pgdriver.Time(`c.paused_at`) + `, c.paused_by, c.paused_reason, a.worker_id,
	(SELECT count(*) FROM ` + o.t.GapSkips.SQL() + ` AS s WHERE s.consumer_name = c.consumer_name AND s.state = 'open'),
	(SELECT count(*) FROM ` + o.t.DeadLetters.SQL() + ` AS l WHERE l.consumer_name = c.consumer_name AND NOT l.replay),
	coalesce(a.partitions, 0), coalesce(c.partitions, 0), c.split_at IS NOT NULL, c.partition_key, c.scope::text
FROM ` + o.t.Checkpoints.SQL() + ` AS c LEFT JOIN ` + o.t.Assignments.SQL() + ` AS a ON a.consumer_name = c.consumer_name
ORDER BY split_part(c.consumer_name, '#', 1) COLLATE "C", c.consumer_name COLLATE "C"`
}

// consumerRow is the row of a consumer or of a unit.
type consumerRow struct {
	Consumer
	split bool // the row is a consumer's, not a unit's
	key   string
}

// consumersOf sums up the units of each consumer. The rows of the units follow the consumer's
// own row.
func consumersOf(rows []consumerRow) (all []Consumer) {
	for _, r := range rows {
		name, slots, ok := partition.Parse(r.Name)
		n := len(all)
		if !ok || slots == partition.All || n == 0 || all[n-1].Name != name {
			if r.split {
				r.Consumer = Consumer{Name: r.Name, Fixed: r.Fixed, UpdatedAt: r.UpdatedAt, Revision: r.Revision}
			}
			all = append(all, r.Consumer)
			continue
		}
		c := &all[n-1]
		if len(c.Units) == 0 {
			c.Position, c.HeadLag, c.Paused, c.Worker, c.Wanted, c.Scope = r.Position, r.HeadLag, r.Paused, r.Worker, r.Wanted, r.Scope
		}
		c.Position, c.HeadLag = min(c.Position, r.Position), max(c.HeadLag, r.HeadLag)
		c.OldestAge = max(c.OldestAge, r.OldestAge)
		c.Wanted = max(c.Wanted, r.Wanted)
		c.OpenRanges, c.DeadLetters = max(c.OpenRanges, r.OpenRanges), c.DeadLetters+r.DeadLetters
		if r.UpdatedAt.After(c.UpdatedAt) {
			c.UpdatedAt = r.UpdatedAt
		}
		if r.Paused == nil {
			c.Paused = nil
		}
		if r.Worker != c.Worker {
			c.Worker = uuid.Nil
		}
		c.Units = append(c.Units, Unit{Name: r.Name, Partition: slots.String(), Key: r.key, Position: r.Position, HeadLag: r.HeadLag, OldestAge: r.OldestAge, Revision: r.Revision, Paused: r.Paused, Worker: r.Worker, OpenRanges: r.OpenRanges, DeadLetters: r.DeadLetters})
	}
	for i := range all {
		all[i].Revision = all[i].revision(all[i].Revision)
	}
	return all
}

// revision returns the revision of a consumer whose own row has the revision own.
func (c *Consumer) revision(own int64) int64 {
	rows := []revised{{c.Name, own}}
	for _, u := range c.Units {
		rows = append(rows, revised{u.Name, u.Revision})
	}
	return revisionOf(rows)
}

// Kind is the kind of an operation.
type Kind string

const (
	KindPause   Kind = "pause"
	KindResume  Kind = "resume"
	KindReset   Kind = "reset"
	KindSkip    Kind = "skip"
	KindRetry   Kind = "retry"   // dead letters
	KindDiscard Kind = "discard" // a dead letter
	KindReplay  Kind = "replay"  // an aggregate
	KindRetire  Kind = "retire"
	// A worker records KindScope when its build selects other types than the build before.
	// KindReplayTypes delivers the events that were passed without the types.
	KindScope       Kind = "scope"
	KindReplayTypes Kind = "replay types"
	// KindPartition fixes the number of partitions. A worker records KindSplit and KindMerge
	// when it has replaced units of a consumer.
	KindPartition Kind = "partition"
	KindSplit     Kind = "split"
	KindMerge     Kind = "merge"
	KindRaise     Kind = "raise"     // a sequence that was below its table's ids
	KindTerminate Kind = "terminate" // a session that held the consumers back
	KindDrain     Kind = "drain"     // a worker
	KindRepair    Kind = "repair"    // by a worker, which set back a checkpoint that a handler had committed
)

// These are operations on jobs and queues. KindPause and KindResume also apply to a queue or a
// schedule, and KindRetire to a schedule. KindRetry and KindDiscard also apply to a job.
// KindCancel and KindRetry also apply to runs of flows: their detail has the run.
const (
	KindCap       Kind = "cap"
	KindRetention Kind = "retention"
	KindCancel    Kind = "cancel"
	KindRerun     Kind = "rerun" // a retry that ignores the refusals
	// KindAcknowledge is on the failed jobs of a queue, which an operator has seen.
	KindAcknowledge Kind = "acknowledge"
)

// Operation is a recorded operation.
type Operation struct {
	ID       int64  // grows over all consumers
	Consumer string // or a unit of it; empty: of none, as of KindTerminate and KindDrain
	Kind     Kind
	Detail   json.RawMessage // an object, whose fields depend on Kind
	By       By
	At       time.Time // by the database's clock
}

// maxOperations is the largest limit of Operations.
const maxOperations = 10_000

// Operations lists the latest operations on a consumer, the newest first. If consumer is empty,
// Operations lists the operations on all consumers. limit is 1 to 10,000.
func (o *Operator) Operations(ctx context.Context, consumer string, limit int) ([]Operation, error) {
	return o.OperationsBefore(ctx, consumer, 0, limit)
}

// OperationsBefore lists the operations with an ID below before, as Operations does. For the
// next page, pass the last ID of this page. 0 is no bound.
func (o *Operator) OperationsBefore(ctx context.Context, consumer string, before int64, limit int) ([]Operation, error) {
	if before == 0 {
		before = math.MaxInt64
	}
	if limit < 1 || limit > maxOperations {
		return nil, fmt.Errorf("ops: list the operations: %w: limit is %d, allowed is 1 to %d", ErrInvalid, limit, maxOperations)
	}
	var err error
	if consumer != "" {
		err = checkConsumer(consumer)
	}
	var all []Operation
	if err == nil {
		query, args := o.operationsSQL(consumer, before, limit)
		all, err = pgdriver.ReadAll(ctx, o.db, scanOperation, query, args...)
	}
	if err != nil {
		return nil, errtext.Of(fmt.Errorf("ops: list the operations: %w", explain(err)))
	}
	return all, nil
}

func scanOperation(rows *sql.Rows) (op Operation, err error) {
	var detail string
	err = rows.Scan(&op.ID, &op.Consumer, &op.Kind, &detail, &op.By.Operator, &op.By.Reason, &op.At)
	op.Detail, op.At = json.RawMessage(detail), op.At.UTC()
	return op, err
}

// operationsSQL reads the newest operations, of a consumer through an index. Former units are
// known only from their operations: one index lookup finds each name. Other names may lie
// between those of the units, since collations ignore punctuation.
func (o *Operator) operationsSQL(consumer string, before int64, limit int) (query string, args []any) {
	columns := `
SELECT o.id, o.consumer_name, o.operation, coalesce(o.detail, '{}')::text, o.operator, o.reason, ` + pgdriver.Time(`o.created_at`) + ` FROM `
	const lastUnit = `greatest($3::text || '#fff-fff', $3::text || '#999-999')` // the higher of the two, since collations order letters and digits differently
	table := o.t.Operations.SQL()
	if consumer == "" {
		return columns + table + ` AS o WHERE o.id < $1::bigint ORDER BY o.id DESC LIMIT $2::bigint`, []any{before, limit}
	}
	return `
WITH RECURSIVE names (name) AS (
	(SELECT consumer_name FROM ` + table + ` WHERE consumer_name >= $3::text AND consumer_name <= ` + lastUnit + ` ORDER BY consumer_name LIMIT 1)
	UNION ALL
	SELECT (SELECT o.consumer_name FROM ` + table + ` AS o WHERE o.consumer_name > names.name AND o.consumer_name <= ` + lastUnit + ` ORDER BY o.consumer_name LIMIT 1) FROM names WHERE name IS NOT NULL
)` + columns + `names CROSS JOIN LATERAL (
	SELECT * FROM ` + table + ` AS o WHERE o.consumer_name = ANY (ARRAY[names.name]) AND o.id < $1::bigint
	ORDER BY o.consumer_name DESC, o.id DESC LIMIT $2::bigint
) AS o
WHERE split_part(names.name, '#', 1) = $3::text
ORDER BY o.id DESC LIMIT $2::bigint`, []any{before, limit, consumer}
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
