package ops

import (
	"cmp"
	"context"
	"math"
	"strings"
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

	// RenamedTo is the new name of a renamed consumer. The other fields then describe the row that
	// is left under the old name, without a position. See Rename. Empty: it was not renamed.
	RenamedTo string

	// Shadow reports that the effects of its events are another consumer's, see Shadow and Switch.
	Shadow bool

	Scope *Scope // of the code that runs it, or ran it last; if it is split, of its first unit; nil: not recorded

	Units  []Unit // of a split consumer, in order; empty: it is not split
	Wanted int    // number of partitions that the leader demands; 0: none
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
		return append(to, &c.Worker, &c.OpenRanges, &c.DeadLetters, &c.Wanted, &c.Fixed, &r.split, &r.key, &c.RenamedTo, &c.Shadow, pgdriver.Destination(func(column any) error {
			if pgdriver.JSON(&c.Scope).Scan(column) != nil { // a worker that reads it ends, and names the consumer
				c.Scope = nil
			}
			return nil
		}))
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
				r.Consumer = Consumer{Name: r.Name, Fixed: r.Fixed, UpdatedAt: r.UpdatedAt, Revision: r.Revision, RenamedTo: r.RenamedTo}
			}
			all = append(all, r.Consumer)
			continue
		}
		c := &all[n-1]
		if len(c.Units) == 0 {
			c.Position, c.HeadLag, c.Paused, c.Worker, c.Wanted, c.Scope, c.Shadow = r.Position, r.HeadLag, r.Paused, r.Worker, r.Wanted, r.Scope, r.Shadow
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
		if all[i].RenamedTo != "" {
			all[i].Position, all[i].Units = 0, nil
		}
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

// Next is the next event of a consumer or of a unit.
type Next struct {
	Consumer   string // or a unit of it
	Checkpoint int64
	// Position is the argument for SkipEvent if the consumer is stuck there, or paused. If it
	// is 0, there is no next event at the moment, and the other fields are zero.
	Position      int64
	Late          bool // it has become visible below the checkpoint
	EventID       uuid.UUID
	EventType     string
	AggregateType string
	AggregateID   string
}

// Next returns the next event of a consumer or a unit. For a split consumer, it returns the next
// events of the units. The next event is the first late one. If there is none, it is the first
// above the checkpoint. It may be an event that the consumer skips, since it has another type or
// belongs to another unit. [Operator.Event] has the payload.
func (o *Operator) Next(ctx context.Context, consumer string) ([]Next, error) {
	what := "read the next event of consumer " + errtext.Value(consumer)
	all, err := read(ctx, &o.core, what, checkUnit(consumer), pgdriver.Columns(func(n *Next) []any {
		return []any{&n.Consumer, &n.Checkpoint, &n.Late, &n.Position, &n.AggregateType, &n.AggregateID, &n.EventID, &n.EventType}
	}), o.sql.next, consumer)
	if err == nil && len(all) == 0 {
		err = o.fail(what, errNoCheckpoint)
	}
	return all, err
}

// Gap is a range of positions without an event that a consumer has passed.
type Gap struct {
	ID          int64     // grows
	Consumer    string    // or a unit of it
	Worker      uuid.UUID // the worker that passed it; the zero UUID: an operator
	First, Last int64
	Missing     int64 // number of positions in it without an event
	// State is "void" if no event can appear in the range, and "open" while an event can
	// appear. It is "late" if an event has appeared and was handled.
	State       string
	SkippedTo   int64 // the position to which the consumer moved on
	FirstSeenAt time.Time
	ClosedAt    *time.Time // nil: the gap is open
}

// GapFilter selects gaps. The zero GapFilter selects all gaps.
type GapFilter struct {
	OnlyOpen bool
	Before   int64 // only gaps with a lower ID; 0: all. For the next page, the last ID of this page
}

// Gaps lists the gaps of a consumer and its units, or of one unit, the newest first. limit is 1
// to 10,000. Closed gaps are merged, and deleted later, see GapSkipRetention. To list the gaps
// of a unit that was replaced, pass the unit's name.
func (o *Operator) Gaps(ctx context.Context, consumer string, f GapFilter, limit int) ([]Gap, error) {
	return read(ctx, &o.core, "list the gaps of consumer "+errtext.Value(consumer), errtext.Join(checkUnit(consumer), checkLimit(limit, maxJobs)),
		pgdriver.Columns(func(g *Gap) []any {
			return []any{&g.ID, &g.Consumer, &g.Worker, &g.First, &g.Last, &g.Missing, &g.State, &g.SkippedTo, pgdriver.UTC(&g.FirstSeenAt), pgdriver.UTCOrNil(&g.ClosedAt)}
		}), o.gapsSQL(f.OnlyOpen), consumer, cmp.Or(f.Before, math.MaxInt64), limit)
}

func (o *Operator) gapsSQL(onlyOpen bool) string {
	open := ``
	if onlyOpen {
		open = ` AND s.state = 'open'`
	}
	return strings.ReplaceAll(o.sql.gaps, "{conditions}", open)
}
