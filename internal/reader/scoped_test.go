package reader

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/bounded"
	"github.com/pgfrontier/worker/store"
)

// countedLog counts the missing positions among its positions.
type countedLog struct {
	store.Log
	store.ScopedReader
	visible map[int64]bool
}

func (l countedLog) CountMissing(_ context.Context, _ store.Querier, after, through int64) (m store.Missing, err error) {
	for p := after + 1; p <= through; p++ {
		if l.visible[p] {
			continue
		}
		if m.Count == 0 {
			m.First = p
		}
		m.Last = p
		m.Count++
	}
	return m, nil
}

// Each page has the sum of its own missing positions, however the pages are cut.
func TestCountMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := countedLog{visible: map[int64]bool{}}
		const last = 30
		rare := rapid.IntRange(1, last).Draw(t, "one missing in")
		for p := int64(1); p <= last; p++ {
			log.visible[p] = rapid.IntRange(1, rare).Draw(t, "visible") != 1
		}
		var pages []Page
		for after := int64(0); after < last; {
			through := rapid.Int64Range(after+1, last).Draw(t, "through")
			pages = append(pages, Page{Positions: frontier.Page{Checkpoint: after, Through: through}})
			after = through
		}
		r := readerOf(log)
		if err := r.countMissing(t.Context(), nil, &frontier.Value{}, pages); err != nil {
			t.Fatal(err)
		}
		for _, p := range pages {
			want, _ := log.CountMissing(t.Context(), nil, p.Positions.Checkpoint, p.Positions.Through)
			if p.Void != want {
				t.Errorf("(%d, %d]: missing %+v, want %+v", p.Positions.Checkpoint, p.Positions.Through, p.Void, want)
			}
		}
	})
}

// emptyPages is a log whose pages are empty and have no end.
type emptyPages struct {
	store.Log
	store.ScopedReader
}

func (emptyPages) ReadScoped(context.Context, store.Querier, store.ScopedRange) (store.ScopedPage, error) {
	return store.ScopedPage{}, nil
}

func (emptyPages) CountMissing(_ context.Context, _ store.Querier, after, through int64) (store.Missing, error) {
	return store.Missing{}, fmt.Errorf("(%d, %d] is no range", after, through)
}

// unprovenLog is a log in memory, which has no incarnation.
type unprovenLog struct{ store.Log }

func (l unprovenLog) At(string) store.Log { return l.Log }

// readerOf returns the reader of a consumer.
func readerOf(log store.Log, types ...string) *Reader {
	return NewAhead(unprovenLog{log}, 10, nil, nil, 0).Reader(types, nil)
}

// A log that violates its contract causes an error, not a panic.
func TestScopedPageWithoutAnEnd(t *testing.T) {
	r := readerOf(emptyPages{}, "A")
	if p, err := r.Read(t.Context(), nil, &frontier.Value{Safe: 9}, Place{Position: 5, Limit: 10, Bound: Unbounded}); err == nil {
		t.Errorf("Read returned %+v", p)
	}
}

// heavyLog has events of a size at each position. It ignores MaxBytes, and records the limits.
type heavyLog struct {
	store.Log
	store.ScopedReader
	size  int
	asked []int
}

func (l *heavyLog) ReadScoped(_ context.Context, _ store.Querier, r store.ScopedRange) (p store.ScopedPage, _ error) {
	l.asked = append(l.asked, r.Limit)
	for p.Through = r.After; len(p.Events) < min(r.Limit, 10); {
		p.Through++
		p.Events = append(p.Events, store.PersistedEvent{GlobalPosition: p.Through, Payload: make([]byte, l.size)})
	}
	return p, nil
}

// A statement of a scoped consumer reads few events ahead, and fewer after large events.
func TestScopedReadsAreBounded(t *testing.T) {
	log := &heavyLog{size: bounded.MaxBytes / 4}
	r := readerOf(log, "A")
	for range 2 {
		if _, err := r.readScoped(t.Context(), nil, &frontier.Value{Safe: 9_000}, span{upTo: 9_000}, 9_000, 100, 50, bounded.MaxBytes); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{scopedEventsAhead, 4}; !slices.Equal(log.asked, want) {
		t.Errorf("the statements have the limits %v, want %v", log.asked, want)
	}
}

// sparseLog has few events, at any distance.
type sparseLog []store.PersistedEvent

func (l sparseLog) find(after, upTo int64, limit int, wanted func(store.PersistedEvent) bool) (events []store.PersistedEvent) {
	for _, e := range l {
		if after < e.GlobalPosition && e.GlobalPosition <= upTo && wanted(e) && len(events) < limit {
			events = append(events, e)
		}
	}
	return events
}

func (l sparseLog) ReadEvents(_ context.Context, _ store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	return l.find(after, math.MaxInt64, limit, func(store.PersistedEvent) bool { return true }), nil
}

func (l sparseLog) GetLatestGlobalPosition(context.Context, store.Querier) (int64, error) {
	return l[len(l)-1].GlobalPosition, nil
}

func (l sparseLog) ReadScoped(_ context.Context, _ store.Querier, r store.ScopedRange) (store.ScopedPage, error) {
	p := store.ScopedPage{Through: r.UpTo}
	p.Events = l.find(r.After, r.UpTo, r.Limit, func(e store.PersistedEvent) bool { return slices.Contains(r.Types, e.AggregateType) })
	if len(p.Events) == r.Limit {
		p.Through = p.Events[r.Limit-1].GlobalPosition
	}
	return p, nil
}

func (l sparseLog) CountMissing(_ context.Context, _ store.Querier, after, through int64) (store.Missing, error) {
	visible := l.find(after, through, math.MaxInt, func(store.PersistedEvent) bool { return true })
	return store.Missing{Range: store.Range{First: after + 1, Last: through}, Count: through - after - int64(len(visible))}, nil
}

// A step over a jump of the sequence ends before the next event, before the next doubt, and at
// Safe.
func TestStepOverAJump(t *testing.T) {
	const far = 10 * scopedStretch
	for name, test := range map[string]struct {
		others  []int64 // events of another type; position 1 has a wanted event
		wanted  []int64 // further wanted events
		doubts  []store.Range
		through int64
	}{
		"nothing after the jump":       {through: far},
		"an event":                     {wanted: []int64{far / 2}, through: far/2 - 1},
		"an event of another type":     {others: []int64{far / 2}, through: far/2 - 1},
		"an event that is not safe":    {wanted: []int64{far + 1}, through: far},
		"a doubt":                      {doubts: []store.Range{{First: far / 2, Last: far / 2}}, through: far/2 - 1},
		"a doubt before an event":      {doubts: []store.Range{{First: far / 3, Last: far / 2}}, wanted: []int64{far/2 + 1}, through: far/3 - 1},
		"an event before a doubt":      {doubts: []store.Range{{First: far / 2, Last: far / 2}}, wanted: []int64{far / 3}, through: far/3 - 1},
		"a doubt in the first stretch": {doubts: []store.Range{{First: 9, Last: 9}}, through: 8},
		"other types on the way":       {others: []int64{7, scopedStretch - 1}, wanted: []int64{far / 2}, through: scopedStretch},
	} {
		t.Run(name, func(t *testing.T) {
			log := sparseLog{{GlobalPosition: 1, AggregateType: "A"}}
			for _, p := range test.others {
				log = append(log, store.PersistedEvent{GlobalPosition: p, AggregateType: "B"})
			}
			for _, p := range test.wanted {
				log = append(log, store.PersistedEvent{GlobalPosition: p, AggregateType: "A"})
			}
			r := readerOf(log, "A")
			p, err := r.Read(t.Context(), nil, &frontier.Value{Safe: far, Doubts: test.doubts}, Place{Limit: 10, Bound: Unbounded})
			if err != nil {
				t.Fatal(err)
			}
			want, _ := log.CountMissing(t.Context(), nil, 0, test.through)
			if p.Positions.Through != test.through || len(p.Events) != 1 || p.Void != want {
				t.Errorf("the page ends at %d with %d events and misses %+v, want %d with one event and %+v", p.Positions.Through, len(p.Events), p.Void, test.through, want)
			}
		})
	}
}
