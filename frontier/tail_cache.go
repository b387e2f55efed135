package frontier

import (
	"slices"
	"sort"
	"time"

	"github.com/pgfrontier/worker/store"
)

const (
	cachedEvents = tailLimit // at most
	cachedBytes  = 4 << 20   // of payload and metadata, at most
	// cachedAhead is the number of events read for consumers after each Follow.
	cachedAhead = 200
)

// tailCache holds the recent events of the log for the consumers at its end. One read serves
// all of them. The cache holds every event that will ever be visible in (after, upTo]: a
// position without an event is void.
//
// Two facts prove this. No doubt lies in (after, upTo]. The rows were read by a statement that
// began after the machine found the range safe. Every reader, too, takes its snapshot after
// that. Rows that join safe without a gap need no such statement.
//
// The incarnation is proven by the statement that reads the rows, or by the statement right
// after it (package incarnation).
type tailCache struct {
	after, upTo int64
	events      []store.PersistedEvent // published Values share the slice: do not modify it in place
	bytes       int
	dropped     int  // bytes of dropped events that the array still holds
	asked       int  // number of events that consumers still want
	due         bool // read rows instead of a tail
	gap         bool // the latest read missed positions
}

// recent is the tail cache at the publication of a Value.
type recent struct {
	after  int64
	events []store.PersistedEvent
}

// Since returns all events in (position, Safe] if the tail cache holds them. ok reports
// whether it does. Positions without an event are void. The events and their payloads are
// shared: do not modify them.
func (v *Value) Since(position int64) (events []store.PersistedEvent, ok bool) {
	if v.recent == nil || position < v.recent.after {
		return nil, false
	}
	return above(v.recent.events, position), true
}

// above returns the events above a position.
func above(events []store.PersistedEvent, position int64) []store.PersistedEvent {
	return events[sort.Search(len(events), func(i int) bool { return events[i].GlobalPosition > position }):]
}

// restart empties the cache and sets its range to begin at a position.
func (r *tailCache) restart(at int64) {
	*r = tailCache{after: at, upTo: at, asked: r.asked, gap: r.gap}
}

// add appends the events in (r.upTo, upTo] and drops the oldest events beyond the limits.
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

// follow records that a consumer at the end of the log wants the next events.
func (m *machine) follow() { m.cache.asked = cachedAhead }

// rowsNow requests a read of rows instead of a waiting tail, if consumers want rows. It
// reports whether it did. The read saves a statement if no position is missing, and costs a
// statement otherwise. So rowsNow requests the read only if the latest read missed nothing. A
// tail that is due still runs.
func (m *machine) rowsNow(now time.Time) bool {
	if m.cache.asked <= 0 || m.cache.gap || m.wantsScan() || m.todo.do != readTail || !m.todo.at.After(now) {
		return false
	}
	m.cache.due = true
	return true
}

// fillCache reports whether the tail cache reaches safe. If it does not, the next statement
// reads the rows, before anything is published. The cache restarts at safe instead if no
// consumer wants rows, the rows are too many, or doubts exist.
func (m *machine) fillCache() bool {
	if m.cache.asked <= 0 || len(m.doubts.all) > 0 || m.safe-m.cache.upTo > cachedEvents {
		if m.cache.upTo < m.safe {
			m.cache.restart(m.safe)
		}
	}
	return m.cache.upTo >= m.safe
}

// onUnreadable continues without rows when a row cannot be read. Consumers then read the rows
// themselves and report the error.
func (m *machine) onUnreadable(now time.Time) {
	if m.cache.due { // the read replaced a tail
		m.tailNow(now)
	}
	m.cache.asked, m.cache.gap = 0, true
	m.cache.restart(m.safe)
	m.publish()
}

// onRows handles the answer to readRows. A run that joins safe is safe at once, as in a tail.
// Rows beyond a gap are left to a tail. Only a tail returns the sequence's last value, which a
// fence needs.
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
