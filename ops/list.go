package ops

import (
	"cmp"
	"context"
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
	rows, err := read(ctx, &o.core, "list the consumers", nil, pgdriver.Columns(func(r *consumerRow) []any {
		c := &r.Consumer
		to := []any{&c.Name, &c.Position, &c.HeadLag, pgdriver.Duration(&c.OldestAge), &c.Revision, pgdriver.UTC(&c.UpdatedAt)}
		to = append(to, pauseInto(&c.Paused)...)
		return append(to, &c.Worker, &c.OpenRanges, &c.DeadLetters, &c.Wanted, &c.Fixed, &r.split, &r.key, pgdriver.JSON(&c.Scope))
	}), o.sql.consumers)
	return consumersOf(rows), err
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

// Operations lists operations on consumers, the newest first. limit is 1 to 10,000.
func (o *Operator) Operations(ctx context.Context, f OperationFilter, limit int) ([]Operation, error) {
	invalid := checkLimit(limit)
	if f.Consumer != "" {
		invalid = errtext.Join(invalid, checkConsumer(f.Consumer))
	}
	if f.Job != 0 || f.Queue != "" {
		invalid = errtext.Join(invalid, fmt.Errorf("%w: operations on consumers have no job and no queue: Jobs lists those that have", ErrInvalid))
	}
	query, args := o.operationsSQL(f, limit)
	return read(ctx, &o.core, "list the operations", invalid, pgdriver.Columns(func(o *Operation) []any {
		return []any{&o.ID, &o.Consumer, &o.Kind, pgdriver.RawJSON(&o.Detail), &o.By.Operator, &o.By.Reason, pgdriver.UTC(&o.At)}
	}), query, args...)
}

func (o *Operator) operationsSQL(f OperationFilter, limit int) (query string, args []any) {
	args = []any{cmp.Or(f.Before, math.MaxInt64), limit}
	if f.Consumer == "" {
		return o.sql.allOperations, args
	}
	return o.sql.operationsOf, append(args, f.Consumer)
}
