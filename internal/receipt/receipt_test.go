package receipt_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/receipt"
)

// width is the number of positions after which a region ends.
const width = 16384

func event(position int64) receipt.Event {
	return receipt.Event{Position: position, ID: uuid.NewSHA1(uuid.Nil, []byte{byte(position), byte(position >> 8), byte(position >> 16)})}
}

func events(positions ...int64) (all []receipt.Event) {
	for _, p := range positions {
		all = append(all, event(p))
	}
	return all
}

func sum(all []receipt.Event) (s receipt.Sum) {
	for _, e := range all {
		s = s.Plus(e.Sum())
	}
	return s
}

func region(first, last int64, positions ...int64) receipt.Region {
	return receipt.Region{First: first, Last: last, Sum: sum(events(positions...))}
}

func ended(first, last int64, positions ...int64) receipt.Row {
	return receipt.Row{Region: region(first, last, positions...)}
}

func single(position int64) receipt.Row {
	e := event(position)
	return receipt.Row{Region: receipt.Region{First: position, Last: position}, Event: &e.ID}
}

// equalRows compares rows with their events.
func equalRows(a, b []receipt.Row) bool {
	return slices.EqualFunc(a, b, func(a, b receipt.Row) bool {
		return a.Region == b.Region && (a.Event == nil) == (b.Event == nil) && (a.Event == nil || *a.Event == *b.Event)
	})
}

func TestPass(t *testing.T) {
	t.Parallel()
	at := func(r receipt.Region) *receipt.Region { return &r }
	for name, c := range map[string]struct {
		before   *receipt.Region
		from, to int64
		events   []int64
		want     receipt.Region
		rows     []receipt.Row
	}{
		"the first batch":                         {nil, 10, 12, []int64{11, 12}, region(11, 12, 11, 12), nil},
		"the first batch has late events":         {nil, 10, 12, []int64{4, 11}, region(11, 12, 11), []receipt.Row{single(4)}},
		"the first batch is late":                 {nil, 10, 10, []int64{4}, region(11, 10), []receipt.Row{single(4)}},
		"the region goes on":                      {at(region(11, 12, 11)), 12, 20, []int64{15}, region(11, 20, 11, 15), nil},
		"no events":                               {at(region(11, 12, 11)), 12, 20, nil, region(11, 20, 11), nil},
		"a late event of the region":              {at(region(11, 12, 11)), 12, 12, []int64{12}, region(11, 12, 11, 12), nil},
		"a late event before the region":          {at(region(11, 12, 11)), 12, 13, []int64{10, 13}, region(11, 13, 11, 13), []receipt.Row{single(10)}},
		"the last position of a region":           {at(region(11, 12)), 12, width - 1, []int64{width - 1}, region(11, width-1, width-1), nil},
		"the first position of the next":          {at(region(11, 12, 11)), 12, width, []int64{20, width}, region(width, width, width), []receipt.Row{ended(11, width-1, 11, 20)}},
		"without events to the next":              {at(region(11, 12, 11)), 12, width + 5, nil, region(width, width+5), []receipt.Row{ended(11, width-1, 11)}},
		"a short region ends, too":                {at(region(width-1, width-1, width-1)), width - 1, width, []int64{width}, region(width, width, width), []receipt.Row{ended(width-1, width-1, width-1)}},
		"from the border on":                      {at(region(11, width-1, 11)), width - 1, width, []int64{width}, region(width, width, width), []receipt.Row{ended(11, width-1, 11)}},
		"over several regions at once":            {at(region(11, 12, 11)), 12, 3*width + 1, nil, region(3*width, 3*width+1), []receipt.Row{ended(11, 3*width-1, 11)}},
		"several regions with events":             {at(region(1, 1)), 1, 2*width + 1, []int64{2, width + 1}, region(2*width, 2*width+1), []receipt.Row{ended(1, width-1, 2), ended(width, 2*width-1, width+1)}},
		"late, and the region ends":               {at(region(11, 12, 11)), 12, width, []int64{10, 11, width}, region(width, width, width), []receipt.Row{single(10), ended(11, width-1, 11, 11)}},
		"something else has moved the checkpoint": {at(region(11, 12, 11)), 15, 16, []int64{12, 16}, region(16, 16, 16), []receipt.Row{ended(11, 12, 11), single(12)}},
		"something else has moved it back":        {at(region(11, 12, 11)), 5, 6, []int64{6}, region(6, 6, 6), []receipt.Row{ended(11, 12, 11)}},
	} {
		t.Run(name, func(t *testing.T) {
			var kept receipt.Region
			if c.before != nil {
				kept = *c.before
			}
			next, rows := c.before.Pass(c.from, c.to, events(c.events...))
			if next != c.want || !equalRows(rows, c.rows) {
				t.Errorf("the region is %+v with the rows %+v; want %+v, %+v", next, rows, c.want, c.rows)
			}
			if c.before != nil && *c.before != kept {
				t.Errorf("the region before is changed to %+v", *c.before)
			}
		})
	}
}

// unit is a unit that handles events in batches, as a worker does.
type unit struct {
	position int64
	region   *receipt.Region
	rows     []receipt.Row
	handled  []receipt.Event
	jumped   bool // something else has moved the checkpoint
}

// batch handles a drawn batch: late events, and events above the checkpoint.
func (u *unit) batch(t *rapid.T) {
	steps := rapid.OneOf(rapid.Int64Range(0, 9), rapid.Int64Range(0, width), rapid.Int64Range(0, 3*width))
	to := u.position + steps.Draw(t, "positions")
	var positions []int64
	if u.position > 0 {
		positions = rapid.SliceOfNDistinct(rapid.Int64Range(1, u.position), 0, 3, rapid.ID).Draw(t, "late")
	}
	for p := u.position; len(positions) < 20; positions = append(positions, p) {
		if p += 1 + steps.Draw(t, "to the next event"); p > to {
			break
		}
	}
	slices.Sort(positions)
	all := events(positions...)
	first := u.position + 1 // of the region
	if u.region != nil && u.region.Last == u.position {
		first = u.region.First
	}
	next, rows := u.region.Pass(u.position, to, all)
	for _, r := range rows {
		if r.Event != nil && (r.First >= first || r.Last != r.First || r.Sum != receipt.Sum{}) {
			t.Fatalf("the row of one event is %+v, beside a region from %d on", r, first)
		}
	}
	u.position, u.region, u.rows, u.handled = to, &next, append(u.rows, rows...), append(u.handled, all...)
}

// split returns the events that have rows of their own, and the regions in order, the last one
// included.
func (u *unit) split() (singles []receipt.Event, regions []receipt.Region) {
	for _, r := range u.rows {
		if r.Event != nil {
			singles = append(singles, receipt.Event{Position: r.First, ID: *r.Event})
		} else {
			regions = append(regions, r.Region)
		}
	}
	return singles, append(regions, *u.region)
}

// Whatever the batches are, the regions and the rows of single events have each handled event once.
// Each region has the events of its positions. No region has events of both sides of a border.
func TestEachHandledEventIsInTheReceiptOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		u := &unit{position: rapid.OneOf(rapid.Int64Range(0, 3*width), rapid.Int64Range(width-5, width+5)).Draw(t, "begins at")}
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			if u.region != nil && rapid.IntRange(0, 9).Draw(t, "moved by something else") == 0 {
				u.position += rapid.Int64Range(1, width).Draw(t, "by")
				u.jumped = true
			}
			u.batch(t)
		}
		singles, regions := u.split()
		total := sum(singles)
		for _, r := range regions {
			total = total.Plus(r.Sum)
		}
		if want := sum(u.handled); total != want {
			t.Fatalf("the receipt has %+v, and %+v was handled", total, want)
		}
		for _, e := range singles {
			i := slices.Index(u.handled, e)
			if i < 0 {
				t.Fatalf("the event %+v was not handled", e)
			}
			u.handled = slices.Delete(u.handled, i, i+1)
		}
		checkRegions(t, u, regions)
	})
}

// checkRegions compares the regions with the handled events that have no row of their own.
func checkRegions(t *rapid.T, u *unit, regions []receipt.Region) {
	for i, r := range regions {
		if i > 0 && (r.First <= regions[i-1].Last || !u.jumped && r.First != regions[i-1].Last+1) {
			t.Fatalf("region %+v follows %+v", r, regions[i-1])
		}
		var inside []receipt.Event
		for _, e := range u.handled {
			if r.First <= e.Position && e.Position <= r.Last {
				inside = append(inside, e)
			}
		}
		if want := sum(inside); r.Sum != want {
			t.Fatalf("region %+v, want %+v", r, want)
		}
		for _, e := range inside {
			if e.Position/width != inside[0].Position/width {
				t.Fatalf("region %+v has events at both sides of a border: %d and %d", r, inside[0].Position, e.Position)
			}
		}
	}
	if last := regions[len(regions)-1]; last.Last != u.position || last.Last/width > 0 && last.First < last.Last-last.Last%width {
		t.Fatalf("the last region is %+v at position %d", last, u.position)
	}
}

// The sum of events does not depend on their order. Without one event, the difference is that event.
func TestDifferenceIsTheMissingEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := events(rapid.SliceOfN(rapid.Int64Range(1, 1<<24), 1, 20).Draw(t, "positions")...)
		shuffled := rapid.Permutation(all).Draw(t, "order")
		if sum(all) != sum(shuffled) {
			t.Fatalf("%+v in another order is %+v", sum(all), sum(shuffled))
		}
		missing, rest := shuffled[0], shuffled[1:]
		if d := sum(all).Minus(sum(rest)); d != missing.Sum() || d.Events != 1 || d.Positions != missing.Position {
			t.Fatalf("without %+v the difference is %+v", missing, d)
		}
		if a, b := sum(all), sum(rest); a.Plus(b).Minus(b) != a || a.Minus(b).Plus(b) != a {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

// The sum of an event is in the tables of many versions, so it does not change. It differs for
// another position, and for another ID.
func TestSumOfAnEventStays(t *testing.T) {
	t.Parallel()
	e := receipt.Event{Position: 4711, ID: uuid.MustParse("01020304-0506-0708-090a-0b0c0d0e0f10")}
	id := e.ID
	if got, want := e.Sum(), (receipt.Sum{Events: 1, Positions: 4711, Hash: 1694213715951721117}); got != want {
		t.Errorf("the sum is %+v, want %+v", got, want)
	}
	if e.ID != id {
		t.Errorf("the ID is changed to %s", e.ID)
	}
	moved, another := e, e
	moved.Position++
	another.ID[15]++
	if h := e.Sum().Hash; moved.Sum().Hash == h || another.Sum().Hash == h {
		t.Errorf("other events have the same hash %d", h)
	}
}

func TestParseReadsString(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SliceOfN(rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, math.MinInt64, math.MaxInt64})), 5, 5).Draw(t, "numbers")
		r := receipt.Region{First: n[0], Last: n[1], Sum: receipt.Sum{Events: n[2], Positions: n[3], Hash: n[4]}}
		if got, err := receipt.Parse(r.String()); err != nil || got == nil || *got != r {
			t.Fatalf("%s is read as %+v: %v", r.String(), got, err)
		}
	})
	if r, err := receipt.Parse(""); r != nil || err != nil {
		t.Errorf("no text is read as %+v, %v", r, err)
	}
	for _, text := range []string{"null", "[]", "[1,2,3,4]", "[1,2,3,4,5,6]", "[1,2,3,4,5.5]", "[1,2,3,4,9223372036854775808]", `{"first":1}`, "[1,2"} {
		if r, err := receipt.Parse(text); err == nil {
			t.Errorf("%s is read as %+v", text, r)
		}
	}
}

// A batch in order needs no memory of its own: each batch of each consumer passes here.
func TestPassAllocatesNothing(t *testing.T) {
	events := make([]receipt.Event, 100)
	for i := range events {
		events[i] = receipt.Event{Position: int64(i + 1), ID: uuid.New()}
	}
	var r *receipt.Region
	if n := testing.AllocsPerRun(100, func() { r.Pass(0, 100, events) }); n > 0 {
		t.Errorf("%v allocations for %d events", n, len(events))
	}
}
