package worker

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// A page holds exactly the wanted visible events up to where it reaches, and
// sums up exactly the positions without an event.
func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const last = 40
		visible := map[int64]string{}
		for p := int64(1); p <= last; p++ {
			if kind := rapid.SampledFrom([]string{"", "A", "A", "B"}).Draw(t, "type"); kind != "" {
				visible[p] = kind
			}
		}
		after := rapid.Int64Range(0, last-1).Draw(t, "after")
		safe := rapid.Int64Range(after+1, last).Draw(t, "safe")
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		onlyA := rapid.Bool().Draw(t, "only A")
		wants := func(aggregateType string) bool { return !onlyA || aggregateType == "A" }

		var read []store.PersistedEvent // as ReadEvents answers
		for p := after + 1; p <= last && len(read) < limit; p++ {
			if visible[p] != "" {
				read = append(read, store.PersistedEvent{GlobalPosition: p, AggregateType: visible[p]})
			}
		}
		exhausted := len(read) < limit || read[limit-1].GlobalPosition >= safe
		page := cut(slices.Clone(read), after, safe, limit, len(read) == limit, wants)

		if page.look.Through <= after || page.look.Through > safe {
			t.Fatalf("the page reaches %d, outside (%d, %d]", page.look.Through, after, safe)
		}
		if page.full == exhausted {
			t.Fatalf("full is %v, but all was read: %v", page.full, exhausted)
		}
		if exhausted != (page.look.Through == safe) {
			t.Fatalf("the page reaches %d of %d, but all was read: %v", page.look.Through, safe, exhausted)
		}
		var want []int64
		var missing []int64
		for p := after + 1; p <= page.look.Through; p++ {
			switch {
			case visible[p] == "":
				missing = append(missing, p)
			case wants(visible[p]):
				want = append(want, p)
			}
		}
		var got []int64
		for _, e := range page.events {
			got = append(got, e.GlobalPosition)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("events %v, want %v", got, want)
		}
		var gaps []int64
		for _, g := range page.look.Missing {
			for p := g.First; p <= g.Last; p++ {
				gaps = append(gaps, p)
			}
		}
		if !slices.Equal(gaps, missing) {
			t.Fatalf("gaps %v, want %v", gaps, missing)
		}
	})
}

// What all consumers share is a page like any other, with bytes of its own.
func TestShare(t *testing.T) {
	events := []store.PersistedEvent{
		{GlobalPosition: 5, AggregateType: "A", Payload: []byte("five"), Metadata: []byte("{}")},
		{GlobalPosition: 6, AggregateType: "B", Payload: []byte("six")},
		{GlobalPosition: 8, AggregateType: "A", Payload: []byte{}},
		{GlobalPosition: 9, AggregateType: "A", Payload: []byte("nine")},
	}
	v := &frontier.Value{Safe: 9}
	onlyA := func(aggregateType string) bool { return aggregateType == "A" }

	p := share(events, v, span{4, 9}, 2, onlyA)
	if n := len(p.events); n != 2 || p.events[1].GlobalPosition != 8 || p.look.Through != 8 || !p.full {
		t.Fatalf("a page of two ends at %d (full: %v) with %d events", p.look.Through, p.full, n)
	}
	if want := []store.Range{{First: 7, Last: 7}}; !slices.Equal(p.look.Missing, want) {
		t.Errorf("missing are %v, want %v", p.look.Missing, want)
	}
	first, second := p.events[0], p.events[1]
	_ = append(append(first.Payload, "!"...), '!')
	first.Payload[0] = '?'
	if got := string(events[0].Payload) + string(first.Metadata); got != "five{}" {
		t.Errorf("a handler that writes into its payload changes the others' to %q", got)
	}
	if first.Metadata == nil || second.Metadata != nil || second.Payload == nil {
		t.Errorf("absent and empty bytes are not kept apart: %+v", p.events)
	}

	p = share(events, v, span{4, 9}, 10, onlyA)
	if len(p.events) != 3 || p.look.Through != 9 || p.full {
		t.Errorf("a page of all ends at %d (full: %v) with %d events", p.look.Through, p.full, len(p.events))
	}
	p = share(events, v, span{4, 7}, 10, onlyA)
	if want := []store.Range{{First: 7, Last: 7}}; len(p.events) != 1 || p.look.Through != 7 || !p.full || !slices.Equal(p.look.Missing, want) {
		t.Errorf("a page up to 7 ends at %d (full: %v) with %d events, without %v", p.look.Through, p.full, len(p.events), p.look.Missing)
	}
}

// countedLog counts what is missing among its positions.
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

// However the pages are cut, each sums up what it misses itself.
func TestCountMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := countedLog{visible: map[int64]bool{}}
		const last = 30
		rare := rapid.IntRange(1, last).Draw(t, "one missing in")
		for p := int64(1); p <= last; p++ {
			log.visible[p] = rapid.IntRange(1, rare).Draw(t, "visible") != 1
		}
		var pages []page
		for after := int64(0); after < last; {
			through := rapid.Int64Range(after+1, last).Draw(t, "through")
			pages = append(pages, page{look: frontier.Page{Checkpoint: after, Through: through}})
			after = through
		}
		c := consumerLoop{w: &Worker{log: log, bound: unprovenLog{log}}}
		if err := c.countMissing(t.Context(), nil, &frontier.Value{}, pages); err != nil {
			t.Fatal(err)
		}
		for _, p := range pages {
			want, _ := log.CountMissing(t.Context(), nil, p.look.Checkpoint, p.look.Through)
			if p.void != want {
				t.Errorf("(%d, %d]: missing are %+v, want %+v", p.look.Checkpoint, p.look.Through, p.void, want)
			}
		}
	})
}

// emptyPages is a log whose pages say nothing, not even how far they reach.
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

// unprovenLog is a log in memory, which has no server to be proven.
type unprovenLog struct{ store.Log }

func (l unprovenLog) At(string) store.Log { return l.Log }

// A log that breaks its word is an error, not the end of the process.
func TestScopedPageWithoutAnEnd(t *testing.T) {
	c := consumerLoop{w: &Worker{log: emptyPages{}, bound: unprovenLog{emptyPages{}}, cfg: Config{BatchSize: 10}}, unit: &unit{types: []string{"A"}}, progress: &progress{position: 5}}
	if p, err := c.lookAround(t.Context(), nil, &frontier.Value{Safe: 9}); err == nil {
		t.Errorf("it was taken for %+v", p)
	}
}

// A stretch has as many pages as there is sight for, and always one.
func TestStretch(t *testing.T) {
	small := make([]store.PersistedEvent, 10)
	large := []store.PersistedEvent{{Payload: make([]byte, farBytes/100)}, {Metadata: make([]byte, farBytes/100)}}
	for _, c := range []struct {
		limit  int
		before []store.PersistedEvent
		pages  int
	}{
		{100, nil, farSight / 100}, {100, small, farSight / 100}, {1000, nil, farSight / 1000}, {farSight + 1, nil, 1},
		{10, large, 10}, {100, large, 1}, {101, large, 1},
	} {
		if got := stretch(c.limit, c.before); got != c.pages {
			t.Errorf("batches of %d, after %d events: %d pages, want %d", c.limit, len(c.before), got, c.pages)
		}
	}
}

// sparseLog has few events, however far they are apart.
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

// A step over a jump of the sequence ends before the next event, before the
// next doubt, and where consumers may advance to.
func TestStepOverAJump(t *testing.T) {
	const far = 10 * scopedStretch
	for name, test := range map[string]struct {
		others  []int64 // events of another type; at position 1 is one that is wanted
		wanted  []int64 // more of these
		doubts  []store.Range
		through int64
	}{
		"nothing behind it":            {through: far},
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
			c := consumerLoop{w: &Worker{log: log, bound: unprovenLog{log}, cfg: Config{BatchSize: 10}}, unit: &unit{types: []string{"A"}}, progress: &progress{}}
			p, err := c.lookAround(t.Context(), nil, &frontier.Value{Safe: far, Doubts: test.doubts})
			if err != nil {
				t.Fatal(err)
			}
			want, _ := log.CountMissing(t.Context(), nil, 0, test.through)
			if p.look.Through != test.through || len(p.events) != 1 || p.void != want {
				t.Errorf("it goes to %d with %d events and misses %+v, want to go to %d with one and miss %+v", p.look.Through, len(p.events), p.void, test.through, want)
			}
		})
	}
}
