package frontier

import (
	"slices"
	"sort"
	"time"

	"github.com/pgfrontier/worker/store"
)

const (
	cachedEvents = tailLimit // kept at most
	cachedBytes  = 4 << 20   // of payload and metadata, kept at most
	// cachedAhead is how many events are read for consumers before one of them
	// must ask again.
	cachedAhead = 200
)

// tailCache is the recent end of the log, for the consumers that are there: one
// read serves them all. It holds every event that will ever be visible in
// (after, upTo]: what it lacks is void.
//
// That is so because no doubt lies in that stretch, and its rows were read by a
// statement that began after the machine had found out that it is safe, in the
// snapshot that every reader must take after the Value; or because they join
// what was safe without a gap.
//
// The statement that reads the rows proves the incarnation, or the one right
// after it does (package incarnation).
type tailCache struct {
	after, upTo int64
	events      []store.PersistedEvent // shared with published Values: never modified in place
	bytes       int
	dropped     int  // bytes that the array of events has in front of them
	asked       int  // so many more events are wanted
	due         bool // read what is new, instead of looking whether there is something
	gap         bool // the last time, something was missing in it
}

// recent is the tail cache as it was when a Value was published.
type recent struct {
	after  int64
	events []store.PersistedEvent
}

// Since returns all events in (position, Safe] if the frontier has them at
// hand: positions that it does not return are void. The events, their payloads
// included, are shared: do not modify them.
func (v *Value) Since(position int64) (events []store.PersistedEvent, ok bool) {
	if v.recent == nil || position < v.recent.after {
		return nil, false
	}
	return above(v.recent.events, position), true
}

// above are the events above a position.
func above(events []store.PersistedEvent, position int64) []store.PersistedEvent {
	return events[sort.Search(len(events), func(i int) bool { return events[i].GlobalPosition > position }):]
}

// restart begins anew at a position.
func (r *tailCache) restart(at int64) {
	*r = tailCache{after: at, upTo: at, asked: r.asked, gap: r.gap}
}

// add puts what follows upTo into the tail cache, and drops the oldest.
func (r *tailCache) add(events []store.PersistedEvent, upTo int64) {
	for i := range events {
		r.bytes += size(&events[i])
	}
	r.events, r.upTo = append(r.events, events...), upTo
	for len(r.events) > cachedEvents || r.bytes > cachedBytes {
		oldest := &r.events[0]
		r.after, r.bytes, r.dropped = oldest.GlobalPosition, r.bytes-size(oldest), r.dropped+size(oldest)
		r.events = r.events[1:]
	}
	if r.dropped > cachedBytes/4 {
		r.events, r.dropped = slices.Clone(r.events), 0
	}
}

func size(e *store.PersistedEvent) int { return len(e.Payload) + len(e.Metadata) }

func (r *tailCache) recent() *recent {
	return &recent{r.after, r.events[:len(r.events):len(r.events)]}
}

// follow takes note that a consumer has come to the end of the log and wants
// what comes next.
func (m *machine) follow() { m.cache.asked = cachedAhead }

// rowsNow reads what is new, if consumers want it, without asking for positions
// first: that saves a statement if nothing is missing, as is likely if nothing
// was the last time, and costs one otherwise. The tail still comes when it is
// due, however often that happens.
func (m *machine) rowsNow(now time.Time) bool {
	if m.cache.asked <= 0 || m.cache.gap || m.wantsScan() || m.todo.do != readTail || !m.todo.at.After(now) {
		return false
	}
	m.cache.due = true
	return true
}

// fillCache reports that the tail cache has all that is safe. If it does not, its rows
// are read before anything is published, unless nobody wants them, or they are
// too many, or in doubt.
func (m *machine) fillCache() bool {
	if m.cache.asked <= 0 || len(m.doubts.all) > 0 || m.safe-m.cache.upTo > cachedEvents {
		if m.cache.upTo < m.safe {
			m.cache.restart(m.safe)
		}
	}
	return m.cache.upTo >= m.safe
}

// onUnreadable goes on without rows: one cannot be read. Consumers read for themselves, and those
// that want it tell.
func (m *machine) onUnreadable(now time.Time) {
	if m.cache.due { // it stood for a tail
		m.tailNow(now)
	}
	m.cache.asked, m.cache.gap = 0, true
	m.cache.restart(m.safe)
	m.publish()
}

// onRows takes the answer to readRows. A run that joins safe is safe at once,
// as in a tail. What lies beyond a gap is left to a tail, which says how far the
// sequence has come: only then may a fence be opened below it.
func (m *machine) onRows(now time.Time, r rowsRead) {
	m.cache.due = false
	var runs []store.Range
	for _, e := range above(r.events, m.safe) {
		runs = appendPosition(runs, e.GlobalPosition)
	}
	m.join(runs)
	m.head = max(m.head, m.safe)
	upTo := m.safe
	if n := len(r.events); n > 0 {
		last := r.events[n-1].GlobalPosition
		if r.full {
			upTo = min(upTo, last)
		}
		if r.full || last > m.head {
			m.tailNow(now)
		}
		m.cache.asked -= n
		r.events = r.events[:n-len(above(r.events, m.safe))]
	}
	m.cache.add(r.events, upTo)
	m.publish()
}
