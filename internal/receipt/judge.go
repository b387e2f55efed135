package receipt

import (
	"cmp"
	"slices"
	"time"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/store"
)

// Covered is a region with the slots and the scope of its unit.
type Covered struct {
	Region
	Slots partition.Range
	Scope *scope.Scope // nil: not recorded
	Ended time.Time    // of the region of a checkpoint: now
}

// Unit is a unit that the consumer has now.
type Unit struct {
	Slots    partition.Range
	Position int64
	Open     []store.Range // passed in doubt, in order; their events are not handled yet
}

// LogEvent is an event of the log.
type LogEvent struct {
	Event
	Type string // of the aggregate
	Slot int    // below 0: only the consumer's code knows it
}

// Fault is why some positions are not proven.
type Fault int

const (
	Differs   Fault = iota + 1 // other events were handled than the log has
	Uncovered                  // the checkpoint passed without a receipt
	Twice                      // regions overlap
	Ahead                      // the checkpoint is behind the receipts
	Unknown                    // the slots of the events or the scope are not known
)

// Finding are positions that are not proven.
type Finding struct {
	store.Range
	Fault Fault
	Diff  Sum // of Differs: the handled events without those of the log
	Slots int // of Uncovered: how many slots
	after time.Time
}

// One returns the position of the only event that is missing or too many.
func (f *Finding) One() (position int64, ok bool) {
	switch f.Diff.Events {
	case -1:
		position = -f.Diff.Positions & mask
	case 1:
		position = f.Diff.Positions
	}
	return position, f.Fault == Differs && f.First <= position && position <= f.Last
}

// Is reports whether the event is the only one that is missing or too many.
func (f *Finding) Is(e Event) bool {
	return f.Diff == e.Sum() || Sum{}.Minus(f.Diff) == e.Sum()
}

// Before reports whether the positions were passed before a time, as far as the regions show.
func (f *Finding) Before(t time.Time) bool { return !f.after.After(t) }

// Judge compares the receipts of a consumer with its log. Give it all events of the log from
// [Judge.From] to [Judge.To], in order of position.
type Judge struct {
	units    []Unit
	waiting  map[int64]bool // positions of the dead letters that the receipts do not have
	ignored  []store.Range
	singles  map[int64][]Single
	all      []Covered
	clusters []cluster
	at       int // the cluster of the last event
	Events   int64
}

// Single is a receipt of one event.
type Single struct {
	Event
	Slots  partition.Range // of its unit
	Unsure bool            // a unit was skipped over the event, and it is not known whether it is one of the unit
}

// cluster are regions that overlap.
type cluster struct {
	store.Range
	regions       []Covered
	got, expected Sum
	events        int64
	unsure        []Sum // of events that another part may have handled
	unknown       bool
}

// NewJudge returns a judge of the regions and the single events of a consumer. Events at the
// positions ignored are not judged.
func NewJudge(units []Unit, regions []Covered, singles []Single, waiting map[int64]bool, ignored []store.Range) *Judge {
	j := &Judge{units: units, waiting: waiting, ignored: ignored, singles: map[int64][]Single{}}
	for _, s := range singles {
		j.singles[s.Position] = append(j.singles[s.Position], s)
	}
	for _, r := range regions {
		if r.First <= r.Last {
			j.all = append(j.all, r)
		}
	}
	slices.SortStableFunc(j.all, func(a, b Covered) int { return cmp.Compare(a.First, b.First) })
	for i, r := range j.all {
		if n := len(j.clusters); n == 0 || r.First > j.clusters[n-1].Last {
			j.clusters = append(j.clusters, cluster{Range: store.Range{First: r.First, Last: r.Last}, regions: j.all[i:i:i]})
		}
		c := &j.clusters[len(j.clusters)-1]
		c.regions, c.Last, c.got = append(c.regions, r), max(c.Last, r.Last), c.got.Plus(r.Sum)
	}
	return j
}

// From returns the first position that a region has.
func (j *Judge) From() int64 {
	if len(j.clusters) == 0 {
		return 1
	}
	return j.clusters[0].First
}

// To returns the last position that a region has.
func (j *Judge) To() (last int64) {
	for _, c := range j.clusters {
		last = c.Last
	}
	return last
}

// Add adds an event of the log.
func (j *Judge) Add(e LogEvent) {
	for j.at < len(j.clusters) && j.clusters[j.at].Last < e.Position {
		j.at++
	}
	if j.at == len(j.clusters) || e.Position < j.clusters[j.at].First || within(j.ignored, e.Position) {
		return
	}
	c := &j.clusters[j.at]
	n, known := c.covers(e)
	waits, sure := j.waits(e)
	if !known || n > 0 && !sure {
		c.unknown = true
		return
	}
	singles := j.singles[e.Position]
	delete(j.singles, e.Position)
	if n == 0 {
		return // of another scope: it was asked for later, or skipped
	}
	for _, s := range singles {
		switch {
		case e.Slot >= 0 && !s.Slots.Has(e.Slot): // its unit was skipped over an event of another unit
		case s.Unsure:
			c.unsure = append(c.unsure, s.Sum())
		default:
			c.got = c.got.Plus(s.Sum())
		}
	}
	if waits {
		n--
	}
	for range n {
		c.expected = c.expected.Plus(e.Sum())
	}
	c.events += int64(min(n, 1))
}

// covers returns how often the cluster's units have passed an event of their scope.
func (c *cluster) covers(e LogEvent) (n int, known bool) {
	var parts []partition.Range
	whole := 0
	for i := range c.regions {
		r := &c.regions[i]
		if e.Position < r.First || r.Last < e.Position || e.Slot >= 0 && !r.Slots.Has(e.Slot) {
			continue
		}
		if r.Scope == nil {
			return 0, false
		}
		switch {
		case !r.Scope.Selects(e.Type):
		case e.Slot >= 0, r.Slots == partition.All:
			whole++
			continue
		default:
			whole = max(whole, 1)
		}
		if r.Slots != partition.All {
			parts = append(parts, r.Slots)
		}
	}
	if e.Slot >= 0 || len(parts) == 0 {
		return whole, true
	}
	slices.SortFunc(parts, func(a, b partition.Range) int { return cmp.Compare(a.First, b.First) })
	return whole, partition.Tile(partition.All, parts)
}

// waits reports whether an event is not to be handled yet.
func (j *Judge) waits(e LogEvent) (waits, sure bool) {
	if j.waiting[e.Position] {
		return true, true
	}
	open, of := 0, 0
	for _, u := range j.units {
		if e.Slot >= 0 && !u.Slots.Has(e.Slot) {
			continue
		}
		if of++; within(u.Open, e.Position) {
			open++
		}
	}
	return open > 0, open == 0 || open == of
}

// Findings returns what is not proven, in order of position. Call it after all events.
func (j *Judge) Findings() (all []Finding) {
	for position, singles := range j.singles { // their events are gone
		i, found := slices.BinarySearchFunc(j.clusters, position, func(c cluster, p int64) int {
			switch {
			case c.Last < p:
				return -1
			case c.First > p:
				return 1
			}
			return 0
		})
		for _, s := range singles {
			if found && !within(j.ignored, position) {
				j.clusters[i].got = j.clusters[i].got.Plus(s.Sum())
			}
		}
	}
	clear(j.singles)
	for _, c := range j.clusters {
		switch {
		case c.unknown, len(c.unsure) > maxUnsure:
			all = append(all, Finding{Range: c.Range, Fault: Unknown})
		case !explains(c.expected.Minus(c.got), c.unsure):
			for _, s := range c.unsure {
				c.got = c.got.Plus(s)
			}
			all = append(all, Finding{Range: c.Range, Fault: Differs, Diff: c.got.Minus(c.expected)})
		default:
			j.Events += c.events
		}
	}
	all = append(all, j.coverage()...)
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(a.First, b.First) })
	return all
}

// maxUnsure bounds the search of explains.
const maxUnsure = 16

// explains reports whether a sum is that of some of the events.
func explains(s Sum, some []Sum) bool {
	if s == (Sum{}) {
		return true
	}
	if s.Events <= 0 || s.Events > int64(len(some)) {
		return false
	}
	return explains(s.Minus(some[0]), some[1:]) || explains(s, some[1:])
}

// coverage finds the positions that not exactly one region has, for each slot of each unit.
func (j *Judge) coverage() (all []Finding) {
	for _, u := range j.units {
		for _, slots := range j.cut(u.Slots) {
			all = append(all, j.coverageOf(u.Position, slots)...)
		}
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Fault, b.Fault), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	merged := all[:0]
	for _, f := range all {
		if n := len(merged); n > 0 && merged[n-1].Fault == f.Fault && merged[n-1].Range == f.Range {
			merged[n-1].Slots += f.Slots
			if f.after.After(merged[n-1].after) {
				merged[n-1].after = f.after
			}
			continue
		}
		merged = append(merged, f)
	}
	return merged
}

// cut cuts slots where those of a region begin or end.
func (j *Judge) cut(slots partition.Range) (all []partition.Range) {
	borders := []int{slots.First, slots.Last + 1}
	for i := range j.all {
		for _, b := range []int{j.all[i].Slots.First, j.all[i].Slots.Last + 1} {
			if slots.First < b && b <= slots.Last && !slices.Contains(borders, b) {
				borders = append(borders, b)
			}
		}
	}
	slices.Sort(borders)
	for i := 1; i < len(borders); i++ {
		all = append(all, partition.Range{First: borders[i-1], Last: borders[i] - 1})
	}
	return all
}

// coverageOf finds the positions up to a checkpoint that not exactly one region with the slots has. It
// begins with the first region.
func (j *Judge) coverageOf(position int64, slots partition.Range) (all []Finding) {
	next := int64(0)
	var ended time.Time // of the regions before next
	add := func(fault Fault, first, last int64) {
		if first <= last {
			all = append(all, Finding{Range: store.Range{First: first, Last: last}, Fault: fault, Slots: slots.Size(), after: ended})
		}
	}
	for i := range j.all {
		r := &j.all[i]
		if !slots.Within(r.Slots) {
			continue
		}
		if next > 0 {
			add(Uncovered, next, r.First-1)
			add(Twice, r.First, min(r.Last, next-1))
		}
		if r.Last >= next {
			next, ended = r.Last+1, r.Ended
		}
	}
	if next > 0 {
		add(Uncovered, next, position)
		add(Ahead, position+1, next-1)
	}
	return all
}

// within reports whether one of some ranges, which are in order, has a position.
func within(ranges []store.Range, position int64) bool {
	i, _ := slices.BinarySearchFunc(ranges, position, func(r store.Range, p int64) int { return cmp.Compare(r.Last, p) })
	return i < len(ranges) && ranges[i].First <= position
}
