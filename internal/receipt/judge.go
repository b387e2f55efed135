package receipt

import (
	"cmp"
	"math"
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
	Diff  Sum             // of Differs: the handled events without those of the log
	Slots partition.Range // of those found by the coverage
	after time.Time       // when the region before them ended
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

// Judge compares the receipts of a consumer with its log. Give it all events of the log from
// [Judge.From] to [Judge.To], in order of position.
type Judge struct {
	units     []Unit
	waiting   map[int64]bool // positions of the dead letters that the receipts do not have
	doubted   []store.Range
	singles   map[int64][]Single
	all       []Covered // in order of First
	active    []Covered // those with the position of the last event
	until     int64     // nothing above is judged
	opened    int       // number of regions that were active, or are
	stretches map[int64]*stretch
	Events    int64 // number of events that are proven
}

// Single is a receipt of one event.
type Single struct {
	Event
	Slots  partition.Range // of its unit
	Unsure bool            // a unit was skipped over the event, and it is not known whether it is one of the unit
}

// stretch are the positions between two multiples of width. No region has events of two stretches.
type stretch struct {
	store.Range   // of the regions that begin here, and of the events
	got, expected Sum
	events        int64
	unsure        []Sum // each may be part of the difference between got and expected
	unknown       bool
}

// NewJudge returns a judge of the regions and the single events of a consumer. Events at the
// positions doubted may have been handled, or not.
func NewJudge(units []Unit, regions []Covered, singles []Single, waiting map[int64]bool, doubted []store.Range) *Judge {
	j := &Judge{units: units, waiting: waiting, doubted: doubted, singles: map[int64][]Single{}, stretches: map[int64]*stretch{}, until: math.MaxInt64}
	for _, s := range singles {
		j.singles[s.Position] = append(j.singles[s.Position], s)
	}
	for _, r := range regions {
		if r.First <= r.Last {
			j.all = append(j.all, r)
		}
	}
	slices.SortStableFunc(j.all, func(a, b Covered) int { return cmp.Compare(a.First, b.First) })
	for _, r := range j.all {
		if r.Sum == (Sum{}) {
			continue
		}
		s := j.stretch(r.First)
		s.got, s.Last = s.got.Plus(r.Sum), max(s.Last, min(r.Last, r.First|(width-1)))
	}
	return j
}

// stretch returns the stretch of a position.
func (j *Judge) stretch(position int64) *stretch {
	s := j.stretches[position/width]
	if s == nil {
		s = &stretch{Range: store.Range{First: position, Last: position}}
		j.stretches[position/width] = s
	}
	s.First, s.Last = min(s.First, position), max(s.Last, position)
	return s
}

// From returns the first position that a region has, 0 if there is none.
func (j *Judge) From() int64 {
	if len(j.all) == 0 {
		return 0
	}
	return j.all[0].First
}

// To returns the last position that a region has and that is judged.
func (j *Judge) To() (last int64) {
	for i := range j.all {
		last = max(last, j.all[i].Last)
	}
	return min(last, j.until)
}

// Until ends the judgement before the stretch of a position, and returns its last position. Call it if
// only the consumer's code knows the slots of events, and not all units have passed the position.
func (j *Judge) Until(position int64) int64 {
	j.until = Begin(position+1) - 1
	for at := range j.stretches {
		if (at+1)*width > j.until+1 {
			delete(j.stretches, at)
		}
	}
	return j.until
}

// Add adds an event of the log.
func (j *Judge) Add(e LogEvent) {
	for j.opened < len(j.all) && j.all[j.opened].First <= e.Position {
		j.active = append(j.active, j.all[j.opened])
		j.opened++
	}
	j.active = slices.DeleteFunc(j.active, func(r Covered) bool { return r.Last < e.Position })
	singles := j.singles[e.Position]
	delete(j.singles, e.Position)
	n, known := j.covers(e)
	waits, sure := j.waits(e)
	if known && n == 0 {
		return // before the first receipt; or of another scope: it was asked for later, or skipped
	}
	s := j.stretch(e.Position)
	if !known || !sure {
		s.unknown = true
		return
	}
	for _, single := range singles {
		switch {
		case e.Slot >= 0 && !single.Slots.Has(e.Slot): // its unit was skipped over an event of another unit
		case single.Unsure:
			s.unsure = append(s.unsure, Sum{}.Minus(single.Sum()))
		default:
			s.got = s.got.Plus(single.Sum())
		}
	}
	if within(j.doubted, e.Position) {
		s.unsure = append(s.unsure, e.Sum())
		return
	}
	if waits {
		n--
	}
	for range n {
		s.expected = s.expected.Plus(e.Sum())
	}
	s.events += int64(min(n, 1))
}

// covers returns how often units have passed an event of their scope.
func (j *Judge) covers(e LogEvent) (n int, known bool) {
	var parts []partition.Range
	for i := range j.active {
		r := &j.active[i]
		if e.Slot >= 0 && !r.Slots.Has(e.Slot) {
			continue
		}
		if r.Scope == nil {
			return 0, false
		}
		part := e.Slot < 0 && r.Slots != partition.All
		if part {
			parts = append(parts, r.Slots)
		}
		switch selects := r.Scope.Selects(e.Type); {
		case selects && part:
			n = max(n, 1)
		case selects:
			n++
		}
	}
	if len(parts) == 0 {
		return n, true
	}
	slices.SortFunc(parts, func(a, b partition.Range) int { return cmp.Compare(a.First, b.First) })
	return n, partition.Tile(partition.All, parts)
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
	for position, singles := range j.singles { // the log does not have their events
		if position > j.until || !slices.ContainsFunc(j.all, func(r Covered) bool { return r.First <= position && position <= r.Last }) {
			continue
		}
		s := j.stretch(position)
		for _, single := range singles {
			s.got = s.got.Plus(single.Sum())
			if single.Unsure || within(j.doubted, position) {
				s.unsure = append(s.unsure, single.Sum())
			}
		}
	}
	clear(j.singles)
	for _, s := range j.stretches {
		switch diff := s.got.Minus(s.expected); {
		case s.unknown:
			all = append(all, Finding{Range: s.Range, Fault: Unknown})
		case explains(diff, s.unsure):
			j.Events += s.events
		case len(s.unsure) > maxUnsure:
			all = append(all, Finding{Range: s.Range, Fault: Unknown})
		default:
			all = append(all, Finding{Range: s.Range, Fault: Differs, Diff: s.likely(diff)})
		}
	}
	for _, u := range j.units {
		for _, slots := range j.cut(u.Slots) {
			all = append(all, j.coverageOf(u.Position, slots)...)
		}
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Fault, b.Fault), cmp.Compare(a.Last, b.Last), cmp.Compare(a.Slots.First, b.Slots.First))
	})
	return all
}

// likely returns the difference if the skipped events were those of the units.
func (s *stretch) likely(diff Sum) Sum {
	for _, sum := range s.unsure {
		if sum.Events < 0 {
			diff = diff.Minus(sum)
		}
	}
	return diff
}

// maxUnsure bounds the search of explains.
const maxUnsure = 16

// explains reports whether a difference is the sum of some of the events.
func explains(diff Sum, some []Sum) bool {
	if diff == (Sum{}) {
		return true
	}
	if len(some) > maxUnsure {
		all := Sum{}
		for _, s := range some {
			all = all.Plus(s)
		}
		return diff == all
	}
	return len(some) > 0 && (explains(diff.Minus(some[0]), some[1:]) || explains(diff, some[1:]))
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
			all = append(all, Finding{Range: store.Range{First: first, Last: last}, Fault: fault, Slots: slots, after: ended})
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
