package frontier

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
)

// rows expects a read of the rows after a position and answers it.
func (s *script) rows(after int64, positions ...int64) {
	s.Helper()
	s.expect(readRows, 0)
	if a := s.m.next(s.now); a.after != after {
		s.Fatalf("next is a read of the rows after %d, want after %d", a.after, after)
	}
	s.m.onRows(s.now, rowsRead{events: eventsAt(positions...)})
}

func eventsAt(positions ...int64) (events []store.PersistedEvent) {
	for _, p := range positions {
		events = append(events, store.PersistedEvent{GlobalPosition: p})
	}
	return events
}

// has checks the events that a consumer at a position gets.
func (s *script) has(position int64, want ...int64) {
	s.Helper()
	events, ok := s.m.value.Since(position)
	var got []int64
	for _, e := range events {
		got = append(got, e.GlobalPosition)
	}
	if !ok || !slices.Equal(got, want) {
		s.Fatalf("at %d the tail cache has %v (%v), want %v", position, got, ok, want)
	}
}

func (s *script) hasNot(position int64) {
	s.Helper()
	if events, ok := s.m.value.Since(position); ok {
		s.Fatalf("the tail cache has %v for a consumer at %d", events, position)
	}
}

func followed(t *testing.T) *script {
	t.Helper()
	s := newScript(t)
	s.tail(0, 2, store.Range{First: 1, Last: 2})
	s.published(2, 2)
	s.m.follow()
	return s
}

// A notification costs one statement, and its events are safe and shared.
func TestTailCacheReadsRowsAtOnce(t *testing.T) {
	s := followed(t)
	s.hasNot(1)
	for p := int64(3); p <= 5; p++ {
		s.now = s.now.Add(100 * ms)
		s.m.wake(s.now)
		s.rows(p-1, p)
		s.published(p, p)
	}
	s.has(2, 3, 4, 5)
	s.has(4, 5)
	s.has(5)
	s.hasNot(1)
	s.tail(700*ms, 5) // despite the wakeups
}

// The machine publishes the positions of a tail together with their rows.
func TestTailCacheFollowsTheTail(t *testing.T) {
	s := followed(t)
	s.tail(time.Second, 4, store.Range{First: 3, Last: 4})
	s.published(2, 2)
	s.rows(2, 3, 4, 5)
	s.published(5, 5)
	s.has(2, 3, 4, 5)
	s.tail(time.Second, 5)
}

// The rows below a fence are read after the fence has closed. Position 3 appears while the
// fence is open, 5 never.
func TestTailCacheIsReadAgainAfterAFence(t *testing.T) {
	s := followed(t)
	s.m.wake(s.now)
	s.rows(2, 4, 6)
	s.published(2, 2)
	s.tail(0, 6, store.Range{First: 4, Last: 4}, store.Range{First: 6, Last: 6})
	s.scan(active("a"))
	s.published(2, 2)
	s.tail(5*ms, 6, store.Range{First: 4, Last: 4}, store.Range{First: 6, Last: 6})
	s.scan()
	s.published(2, 2)
	s.rows(2, 3, 4, 6)
	s.published(6, 6)
	s.has(2, 3, 4, 6)
}

// After a gap, the tail comes before the rows.
func TestTailCacheWaitsForTheTailAfterGaps(t *testing.T) {
	s := followed(t)
	s.m.wake(s.now)
	s.rows(2, 4)
	s.tail(0, 4, store.Range{First: 4, Last: 4})
	s.scan()
	s.rows(2, 4)
	s.m.wake(s.now)
	s.tail(0, 5, store.Range{First: 5, Last: 5})
	s.rows(4, 5)
	s.m.wake(s.now)
	s.rows(5, 6)
	s.published(6, 6)
}

// Without Follow the machine stops reading rows.
func TestTailCacheStopsWithoutFollow(t *testing.T) {
	s := followed(t)
	position := int64(2)
	for range cachedAhead {
		s.m.wake(s.now)
		s.rows(position, position+1)
		position++
	}
	s.has(position-2, position-1, position)
	s.m.wake(s.now)
	s.tail(0, position+1, store.Range{First: position + 1, Last: position + 1})
	s.published(position+1, position+1)
	s.hasNot(position)
	s.m.follow()
	s.m.wake(s.now)
	s.rows(position+1, position+2)
	s.has(position+1, position+2)
}

// The tail cache holds no doubt, and no position below a doubt.
func TestTailCacheEndsAtDoubts(t *testing.T) {
	s := followed(t)
	s.m.wake(s.now)
	s.rows(2, 4)
	s.tail(0, 4, store.Range{First: 4, Last: 4})
	s.scan(old(active("a")))
	s.tail(0, 4, store.Range{First: 4, Last: 4})
	s.published(2, 4, store.Range{First: 3, Last: 3})
	s.hasNot(2)
	s.hasNot(3)
	s.tail(5*ms, 5, store.Range{First: 5, Last: 5})
	s.published(2, 5, store.Range{First: 3, Last: 3})
	s.hasNot(4)
	s.scan(active("a"))
	s.m.wake(s.now)
	s.tail(0, 5) // no row would be used
	s.tail(5*ms, 5)
	s.scan()
	s.published(5, 5)
	s.hasNot(4)
	s.m.wake(s.now)
	s.rows(5, 6)
	s.has(5, 6)
}

// The machine does not read a range that is too long for the tail cache.
func TestTailCacheSkipsALongRange(t *testing.T) {
	s := followed(t)
	last := int64(2 + cachedEvents + 1)
	s.tail(time.Second, last, store.Range{First: 3, Last: last})
	s.published(last, last)
	s.hasNot(last - 1)
	s.m.wake(s.now)
	s.rows(last, last+1)
	s.has(last, last+1)
	s.tail(time.Second, last+3, store.Range{First: last + 2, Last: last + 3})
	s.rows(last+1, last+2, last+3)
	s.has(last, last+1, last+2, last+3)
}

// The machine forgets the tail cache together with everything else.
func TestTailCacheIsForgotten(t *testing.T) {
	s := followed(t)
	s.m.wake(s.now)
	s.rows(2, 3)
	s.expect(readTail, time.Second)
	s.m.onTail(s.now, tailRead{token: "other", last: 3})
	s.expect(readStart, 0)
	s.m.onStart(s.now, startRead{token: "other", found: true, settled: 3, last: 3})
	s.hasNot(2)
	s.has(3)
}

func TestTailCacheIsBounded(t *testing.T) {
	r := tailCache{}
	for p := int64(1); p <= 3*cachedEvents; p++ {
		r.add(eventsAt(p), p)
	}
	if n := len(r.events); n != cachedEvents || r.after != 2*cachedEvents {
		t.Errorf("the cache has %d events, after position %d", n, r.after)
	}
	const size = cachedBytes/4 + 1
	for p := int64(1); p <= 10; p++ {
		events := eventsAt(3*cachedEvents + p)
		events[0].Payload, events[0].Metadata = make([]byte, size-10), make([]byte, 10)
		r.add(events, 3*cachedEvents+p)
	}
	if n := len(r.events); n != 3 || r.bytes != 3*size || r.after != 3*cachedEvents+7 {
		t.Errorf("the cache has %d events of %d bytes, after position %d", n, r.bytes, r.after)
	}
}

// A published Value does not change while the tail cache grows. A consumer that appends to the
// events of a Value does not write into the cache.
func TestTailCacheDoesNotModifyValues(t *testing.T) {
	r := tailCache{}
	r.events = make([]store.PersistedEvent, 0, 10)
	r.add(eventsAt(1, 2), 2)
	published := r.recent()
	r.add(eventsAt(3), 3)
	_ = append(published.events, eventsAt(9)...)
	if len(published.events) != 2 || r.events[2].GlobalPosition != 3 {
		t.Errorf("published are %v, the tail cache has %v", published.events, r.events)
	}
}

// On a server: only after Follow does the next read fill the tail cache.
func TestTailCacheOnAServer(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	first := appendEvent(t, d.DB)
	s.step(readTail)
	if events, ok := s.f.Value().Since(first - 1); ok {
		t.Fatalf("without Follow the tail cache has %v", events)
	}
	s.f.Follow()
	second := appendEvent(t, d.DB)
	s.step(readTail, readRows)
	if events, ok := s.f.Value().Since(first); !ok || len(events) != 1 || events[0].GlobalPosition != second {
		t.Errorf("after position %d the tail cache has %v (%v), want %d", first, events, ok, second)
	}
}

// failoverLog returns the error of another incarnation while its flag is set.
type failoverLog struct {
	namedLog
	moved *bool
}

func (l failoverLog) At(string) store.Log { return provenLog(l) }

type provenLog failoverLog

func (l provenLog) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	if *l.moved {
		return nil, store.ErrIncarnation
	}
	return l.namedLog.ReadEvents(ctx, q, after, limit)
}

// Rows of another incarnation are not shared, and the frontier starts again.
func TestTailCacheOfAnotherIncarnation(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg, moved := testConfig(t, d.DB), false
	cfg.Log = failoverLog{events(), &moved}
	s := open(t, cfg)
	s.start()
	s.f.Follow()
	first := appendEvent(t, d.DB)
	s.step(readTail, readRows)
	moved = true
	appendEvent(t, d.DB)
	s.step(readTail, readRows)
	if events, ok := s.f.Value().Since(first); ok && len(events) > 0 {
		t.Errorf("the tail cache has %v of another incarnation", events)
	}
	s.step(readStart)
}

// Dropped events do not stay in memory in the array of the cache, however long the array is.
func TestTailCacheReleasesDroppedEvents(t *testing.T) {
	t.Parallel()
	for small := cachedEvents; small < 3*cachedEvents; small += cachedEvents / 5 {
		var r tailCache
		position := int64(0)
		add := func(size int) weak.Pointer[byte] {
			position++
			payload := make([]byte, size)
			r.add([]store.PersistedEvent{{GlobalPosition: position, Payload: payload}}, position)
			return weak.Make(&payload[0])
		}
		for range small {
			add(1)
		}
		const large = 100 << 10
		var payloads []weak.Pointer[byte]
		for range 10 {
			for range 50 {
				payloads = append(payloads, add(large))
			}
			runtime.GC()
			kept := 0
			for _, p := range payloads {
				if p.Value() != nil {
					kept += large
				}
			}
			if most := cachedBytes*5/4 + large; kept > most || kept < r.bytes {
				t.Errorf("after %d small and %d large events %d bytes are in memory, want %d to %d", small, len(payloads), kept, r.bytes, most)
			}
		}
		runtime.KeepAlive(r.events)
	}
}
