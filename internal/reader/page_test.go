package reader

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// A page holds exactly the wanted visible events up to its end, and exactly the positions
// without an event.
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
		wants := func(e *store.PersistedEvent) bool { return !onlyA || e.AggregateType == "A" }

		var read []store.PersistedEvent // as ReadEvents returns them
		for p := after + 1; p <= last && len(read) < limit; p++ {
			if visible[p] != "" {
				read = append(read, store.PersistedEvent{GlobalPosition: p, AggregateType: visible[p]})
			}
		}
		exhausted := len(read) < limit || read[limit-1].GlobalPosition >= safe
		page := cut(slices.Clone(read), after, safe, limit, len(read) == limit, wants)

		if page.Positions.Through <= after || page.Positions.Through > safe {
			t.Fatalf("the page reaches %d, outside (%d, %d]", page.Positions.Through, after, safe)
		}
		if page.Full == exhausted {
			t.Fatalf("full is %v, but all was read: %v", page.Full, exhausted)
		}
		if exhausted != (page.Positions.Through == safe) {
			t.Fatalf("the page reaches %d of %d, but all was read: %v", page.Positions.Through, safe, exhausted)
		}
		var want []int64
		var missing []int64
		for p := after + 1; p <= page.Positions.Through; p++ {
			switch {
			case visible[p] == "":
				missing = append(missing, p)
			case wants(&store.PersistedEvent{AggregateType: visible[p]}):
				want = append(want, p)
			}
		}
		var got []int64
		for _, e := range page.Events {
			got = append(got, e.GlobalPosition)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("events %v, want %v", got, want)
		}
		var gaps []int64
		for _, g := range page.Positions.Missing {
			for p := g.First; p <= g.Last; p++ {
				gaps = append(gaps, p)
			}
		}
		if !slices.Equal(gaps, missing) {
			t.Fatalf("gaps %v, want %v", gaps, missing)
		}
	})
}

// A page of events that all consumers share is like any other page, with payloads of its own.
func TestPageOfTheTailCache(t *testing.T) {
	events := []store.PersistedEvent{
		{GlobalPosition: 5, AggregateType: "A", Payload: []byte("five"), Metadata: []byte("{}")},
		{GlobalPosition: 6, AggregateType: "B", Payload: []byte("six")},
		{GlobalPosition: 8, AggregateType: "A", Payload: []byte{}},
		{GlobalPosition: 9, AggregateType: "A", Payload: []byte("nine")},
	}
	v := &frontier.Value{Safe: 9}
	onlyA := func(e *store.PersistedEvent) bool { return e.AggregateType == "A" }

	p := pageOfTail(events, v, span{4, 9}, 2, onlyA)
	if n := len(p.Events); n != 2 || p.Events[1].GlobalPosition != 8 || p.Positions.Through != 8 || !p.Full {
		t.Fatalf("a page of two events ends at %d (full: %v) with %d events", p.Positions.Through, p.Full, n)
	}
	if want := []store.Range{{First: 7, Last: 7}}; !slices.Equal(p.Positions.Missing, want) {
		t.Errorf("missing are %v, want %v", p.Positions.Missing, want)
	}
	first, second := p.Events[0], p.Events[1]
	_ = append(append(first.Payload, "!"...), '!')
	first.Payload[0] = '?'
	if got := string(events[0].Payload) + string(first.Metadata); got != "five{}" {
		t.Errorf("a handler that writes into its payload changes the shared payload to %q", got)
	}
	if first.Metadata == nil || second.Metadata != nil || second.Payload == nil {
		t.Errorf("absent and empty payloads are not distinguished: %+v", p.Events)
	}

	p = pageOfTail(events, v, span{4, 9}, 10, onlyA)
	if len(p.Events) != 3 || p.Positions.Through != 9 || p.Full {
		t.Errorf("a page of all events ends at %d (full: %v) with %d events", p.Positions.Through, p.Full, len(p.Events))
	}
	p = pageOfTail(events, v, span{4, 7}, 10, onlyA)
	if want := []store.Range{{First: 7, Last: 7}}; len(p.Events) != 1 || p.Positions.Through != 7 || !p.Full || !slices.Equal(p.Positions.Missing, want) {
		t.Errorf("a page up to 7 ends at %d (full: %v) with %d events, without %v", p.Positions.Through, p.Full, len(p.Events), p.Positions.Missing)
	}
}

// A shared page gives each consumer its events by its own key. A consumer may begin in the
// middle of the page.
func TestSharesOfOnePage(t *testing.T) {
	p := Page{Positions: frontier.Page{Through: 40}}
	for at := int64(1); at <= 40; at++ {
		p.Events = append(p.Events, store.PersistedEvent{GlobalPosition: at})
	}
	p.slots = &slotsOf{events: p.Events}
	for _, after := range []int64{0, 7, 30, 0} {
		for name, slot := range map[string]func(at int64) int{
			"c": func(at int64) int { return int(at % 4) },
			"d": func(at int64) int { return int(at / 4 % 4) },
		} {
			r := view{share: &Share{Of: name, First: 1, Last: 2, Slot: func(e *store.PersistedEvent) (int, error) { return slot(e.GlobalPosition), nil }}}
			rest, ok := p.from(after)
			if !ok {
				t.Fatal("there is no page after", after)
			}
			n := r.countShare(&rest)
			r.keepShare(&rest)
			var got, want []int64
			for _, e := range rest.Events {
				got = append(got, e.GlobalPosition)
			}
			for at := after + 1; at <= 40; at++ {
				if s := slot(at); s == 1 || s == 2 {
					want = append(want, at)
				}
			}
			if !slices.Equal(got, want) || n != len(want) {
				t.Errorf("%s got %d events after %d, %v, want %v", name, n, after, got, want)
			}
		}
	}
}
