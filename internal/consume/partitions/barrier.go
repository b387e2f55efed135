package partitions

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/partition"
)

const (
	// barrierPace is the most time that the parts behind may need to catch up when a
	// barrier opens. The other parts wait for them.
	barrierPace = 5 * time.Second
	// barrierPoll is how soon an idle part checks again whether a barrier may open.
	barrierPoll = time.Second
	// barrierLimit is the time after which a barrier is aborted.
	barrierLimit = 10 * time.Second
	// barrierSilence is how long ago a part's last arrival may be when a barrier opens. A
	// longer silence means that the part's batch fails or takes long.
	barrierSilence = 3 * barrierLimit / 2
)

// Barriers are the merge barriers of the parts that run in this worker. Parts can be
// merged only at the same position. The barrier is in memory: when it opens, its position
// is the furthest part's, and each part waits there.
type Barriers struct {
	mu     sync.Mutex
	all    map[string]*mergeBarrier // by the name of the merged unit
	change chan struct{}            // closed when a barrier opens, closes or moves
}

// Changed returns a channel that is closed at the next change. Callers take the channel
// before they call arrive.
func (m *Barriers) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.change == nil {
		m.change = make(chan struct{})
	}
	return m.change
}

func (m *Barriers) notify() {
	if m.change != nil {
		close(m.change)
		m.change = nil
	}
}

// arrive records a part's position at its barrier, and returns the part's instruction.
func (m *Barriers) arrive(target string, of partition.Range, unit string, now time.Time, s participant) (do instruction) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]*mergeBarrier{}
	}
	g := m.all[target]
	if g == nil {
		g = &mergeBarrier{of: of, participants: map[string]participant{}}
		m.all[target] = g
	}
	before := g.state()
	do = g.arrive(unit, now, s)
	if g.state() != before {
		m.notify()
	}
	return do
}

// leave removes a part from its barrier. The barrier closes.
func (m *Barriers) leave(target, unit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.all[target]
	if g == nil {
		return
	}
	if delete(g.participants, unit); len(g.participants) == 0 {
		delete(m.all, target)
	}
	g.close()
	m.notify()
}

// abort closes a barrier whose parts could not be merged. No barrier opens before until.
func (m *Barriers) abort(target string, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.all[target]; g != nil {
		g.close()
		g.notBefore = until
		m.notify()
	}
}

// participant is a part at a barrier.
type participant struct {
	slots   partition.Range
	at      int64
	unready bool // the part is paused or failing

	from  int64     // its first position
	since time.Time // when the part was first at position from
	last  time.Time // its last arrival
	waits bool      // the part waits at the barrier's position
}

// instruction is what a part is to do.
type instruction struct {
	bounded bool
	upTo    int64     // the last position that the part may read, if bounded
	wait    bool      // the part waits for the other parts
	until   time.Time // when the wait ends, or when the part arrives again
	merge   bool      // all parts wait, and this part merges them
}

// mergeBarrier is the barrier of the parts of one merged unit. Its methods decide without
// I/O.
type mergeBarrier struct {
	of           partition.Range
	participants map[string]participant
	open         bool
	upTo         int64 // the barrier's position
	began        time.Time
	merging      bool      // one of the parts is merging
	notBefore    time.Time // no barrier opens before
}

// barrierState is the state whose change is notified to the parts.
type barrierState struct {
	open bool
	upTo int64
}

func (g *mergeBarrier) state() barrierState { return barrierState{g.open, g.upTo} }

func (g *mergeBarrier) arrive(unit string, now time.Time, s participant) instruction {
	if was, known := g.participants[unit]; known && was.from <= s.at {
		s.from, s.since = was.from, was.since
	} else {
		s.from, s.since = s.at, now
	}
	s.last = now
	g.participants[unit] = s
	if g.open && now.Sub(g.began) >= barrierLimit && !g.merging {
		g.close()
		g.notBefore = now.Add(barrierLimit)
	}
	if !g.open && g.mayOpen(now) {
		g.open, g.upTo, g.began = true, g.furthest(), now
	}
	if !g.open {
		do := instruction{until: now.Add(barrierPoll)}
		if now.Before(g.notBefore) {
			do.until = g.notBefore
		}
		return do
	}
	if s.at > g.upTo { // its batch was in flight
		g.upTo = s.at
		for name, other := range g.participants {
			other.waits = false
			g.participants[name] = other
		}
	}
	do := instruction{bounded: true, upTo: g.upTo, until: g.began.Add(barrierLimit)}
	if s.at < g.upTo || s.unready {
		return do
	}
	s.waits = true
	g.participants[unit] = s
	if !g.merging && g.complete() && g.all(func(s participant) bool { return s.waits }) {
		g.merging = true
		do.merge = true
		return do
	}
	if do.wait = true; g.merging {
		do.until = now.Add(barrierLimit) // the merge has its own limit
	}
	return do
}

// close lets all parts continue.
func (g *mergeBarrier) close() {
	g.open, g.merging = false, false
	for name, s := range g.participants {
		s.waits = false
		g.participants[name] = s
	}
}

// mayOpen reports whether all parts are ready and have arrived, and those behind are near
// enough.
func (g *mergeBarrier) mayOpen(now time.Time) bool {
	if now.Before(g.notBefore) || !g.complete() {
		return false
	}
	far := g.furthest()
	return g.all(func(s participant) bool {
		if s.unready || now.Sub(s.last) > barrierSilence {
			return false
		}
		behind, gone, took := float64(far-s.at), float64(s.at-s.from), now.Sub(s.since)
		return behind == 0 || gone > 0 && time.Duration(behind/gone*float64(took)) <= barrierPace
	})
}

func (g *mergeBarrier) furthest() (at int64) {
	for _, s := range g.participants {
		at = max(at, s.at)
	}
	return at
}

func (g *mergeBarrier) all(ok func(participant) bool) bool {
	for _, s := range g.participants {
		if !ok(s) {
			return false
		}
	}
	return true
}

// complete reports whether the parts cover the merged unit's slots.
func (g *mergeBarrier) complete() bool {
	var slots []partition.Range
	for _, s := range g.participants {
		slots = append(slots, s.slots)
	}
	slices.SortFunc(slots, func(a, b partition.Range) int { return cmp.Compare(a.First, b.First) })
	return partition.Tile(g.of, slots)
}

// partsOf returns the sorted names of the parts at a barrier.
func (m *Barriers) partsOf(target string) (units []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.all[target]; g != nil {
		units = slices.Sorted(maps.Keys(g.participants))
	}
	return units
}
