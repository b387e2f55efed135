package consume

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/partition"
)

const (
	// meetingPace is how long the parts that are behind may need, at their pace,
	// until a meeting begins: the others wait for them.
	meetingPace = 5 * time.Second
	// meetingAgain is how soon parts that have nothing to do see whether a meeting
	// may begin.
	meetingAgain = time.Second
	// meetingLimit is after what time a meeting is given up.
	meetingLimit = 10 * time.Second
	// meetingSilence is for how long a part may not have attended when a meeting begins: its
	// batch fails, or lasts.
	meetingSilence = 3 * meetingLimit / 2
)

// meetings are those of the parts that run in this worker. Parts that are to be
// merged must stand at one position. They meet in memory: nobody goes further than
// the one that was furthest when the meeting began, and there they wait.
type meetings struct {
	mu   sync.Mutex
	all  map[string]*meeting // by the name of the unit that the parts are to become
	news chan struct{}       // closed when a meeting begins, ends or is moved on
}

// changed returns a channel that is closed at the next change. Take it before
// attend.
func (m *meetings) changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.news == nil {
		m.news = make(chan struct{})
	}
	return m.news
}

func (m *meetings) tell() {
	if m.news != nil {
		close(m.news)
		m.news = nil
	}
}

// attend takes note of where a part stands, and says what it is to do.
func (m *meetings) attend(target string, of partition.Range, unit string, now time.Time, s stand) (do move) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]*meeting{}
	}
	g := m.all[target]
	if g == nil {
		g = &meeting{of: of, stands: map[string]stand{}}
		m.all[target] = g
	}
	before := g.state()
	do = g.attend(unit, now, s)
	if g.state() != before {
		m.tell()
	}
	return do
}

// leave takes note that a part attends no longer. That ends the meeting.
func (m *meetings) leave(target, unit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.all[target]
	if g == nil {
		return
	}
	if delete(g.stands, unit); len(g.stands) == 0 {
		delete(m.all, target)
	}
	g.end()
	m.tell()
}

// adjourn ends a meeting whose parts could not be merged, and says when the next
// may begin.
func (m *meetings) adjourn(target string, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.all[target]; g != nil {
		g.end()
		g.notBefore = until
		m.tell()
	}
}

// stand is where a part stands.
type stand struct {
	slots   partition.Range
	at      int64
	unready bool // it is paused, or something fails

	from  int64     // where it stood first
	since time.Time // when that was
	last  time.Time // when it last attended
	here  bool      // it waits where the meeting is
}

// move is what a part is to do.
type move struct {
	bounded bool
	upTo    int64     // it goes no further, if it is bounded
	wait    bool      // it is there, and others are not
	until   time.Time // it waits no longer, or attends again
	merge   bool      // all are there, and this part merges them
}

// meeting is one of the parts of a unit. It decides, and does nothing.
type meeting struct {
	of        partition.Range
	stands    map[string]stand
	on        bool
	upTo      int64 // where it is
	began     time.Time
	merging   bool      // one of the parts does it
	notBefore time.Time // there is none before
}

// meetingState is what the parts must hear of.
type meetingState struct {
	on   bool
	upTo int64
}

func (g *meeting) state() meetingState { return meetingState{g.on, g.upTo} }

func (g *meeting) attend(unit string, now time.Time, s stand) move {
	if was, known := g.stands[unit]; known && was.from <= s.at {
		s.from, s.since = was.from, was.since
	} else {
		s.from, s.since = s.at, now
	}
	s.last = now
	g.stands[unit] = s
	if g.on && now.Sub(g.began) >= meetingLimit && !g.merging {
		g.end()
		g.notBefore = now.Add(meetingLimit)
	}
	if !g.on && g.mayBegin(now) {
		g.on, g.upTo, g.began = true, g.furthest(), now
	}
	if !g.on {
		do := move{until: now.Add(meetingAgain)}
		if now.Before(g.notBefore) {
			do.until = g.notBefore
		}
		return do
	}
	if s.at > g.upTo { // its batch was on its way
		g.upTo = s.at
		for name, other := range g.stands {
			other.here = false
			g.stands[name] = other
		}
	}
	do := move{bounded: true, upTo: g.upTo, until: g.began.Add(meetingLimit)}
	if s.at < g.upTo || s.unready {
		return do
	}
	s.here = true
	g.stands[unit] = s
	if !g.merging && g.complete() && g.all(func(s stand) bool { return s.here }) {
		g.merging = true
		do.merge = true
		return do
	}
	if do.wait = true; g.merging {
		do.until = now.Add(meetingLimit) // the merge has a bound of its own
	}
	return do
}

// end lets all parts go on.
func (g *meeting) end() {
	g.on, g.merging = false, false
	for name, s := range g.stands {
		s.here = false
		g.stands[name] = s
	}
}

// mayBegin reports whether all parts are ready and attend, and those behind are near enough.
func (g *meeting) mayBegin(now time.Time) bool {
	if now.Before(g.notBefore) || !g.complete() {
		return false
	}
	far := g.furthest()
	return g.all(func(s stand) bool {
		if s.unready || now.Sub(s.last) > meetingSilence {
			return false
		}
		behind, gone, took := float64(far-s.at), float64(s.at-s.from), now.Sub(s.since)
		return behind == 0 || gone > 0 && time.Duration(behind/gone*float64(took)) <= meetingPace
	})
}

func (g *meeting) furthest() (at int64) {
	for _, s := range g.stands {
		at = max(at, s.at)
	}
	return at
}

func (g *meeting) all(ok func(stand) bool) bool {
	for _, s := range g.stands {
		if !ok(s) {
			return false
		}
	}
	return true
}

// complete reports whether the parts are all that there are.
func (g *meeting) complete() bool {
	var slots []partition.Range
	for _, s := range g.stands {
		slots = append(slots, s.slots)
	}
	slices.SortFunc(slots, func(a, b partition.Range) int { return cmp.Compare(a.First, b.First) })
	return partition.Tile(g.of, slots)
}

// partsOf returns the names of those that attend, in order.
func (m *meetings) partsOf(target string) (units []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.all[target]; g != nil {
		units = slices.Sorted(maps.Keys(g.stands))
	}
	return units
}
