package reader

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// windowed returns a window without a log, and its readers.
func windowed(at ...int64) (w *window, readers []*Reader) {
	w = &window{at: map[*Reader]int64{}}
	for _, p := range at {
		r := &Reader{}
		readers = append(readers, r)
		w.at[r] = p
	}
	return w, readers
}

// stretchOf returns a read stretch with pages of at most limit positions.
func stretchOf(after, through, limit int64, more bool) *Stretch {
	s := &Stretch{after: after, through: through, v: &frontier.Value{}, more: more, isRead: true, isCounted: true}
	for at := after; at < through; at += limit {
		end := min(at+limit, through)
		p := Page{Positions: frontier.Page{Checkpoint: at, Through: end}, Full: end < through || more}
		for position := at + 1; position <= end; position++ {
			p.Events = append(p.Events, store.PersistedEvent{GlobalPosition: position})
		}
		s.bytes += sizeOf(p.Events)
		s.pages = append(s.pages, p)
	}
	return s
}

// The next read is for a reader with the fewest stretches, and follows all of them. It
// overlaps no stretch, and reads no position that is not final.
func TestNextRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, _ := windowed(rapid.SliceOfN(rapid.Int64Range(0, 60), 1, 4).Draw(t, "readers")...)
		for at := int64(0); at < 60; {
			after := at + rapid.Int64Range(0, 12).Draw(t, "hole")
			through := after + rapid.Int64Range(1, 12).Draw(t, "length")
			w.add(stretchOf(after, through, 5, rapid.IntRange(0, 3).Draw(t, "more") > 0))
			at = through
		}
		safe := rapid.Int64Range(0, 80).Draw(t, "safe")
		has := func(at int64) (stretches int, end int64, more bool) {
			for more = true; more; {
				i := slices.IndexFunc(w.stretches, func(s *Stretch) bool { return s.after <= at && at < s.through })
				if i < 0 {
					break
				}
				stretches, at, more = stretches+1, w.stretches[i].through, w.stretches[i].more
			}
			return stretches, at, more
		}
		ahead, least, ok := w.next(func(int64) int64 { return safe })
		served := false
		for _, at := range w.at {
			n, end, more := has(at)
			if needs := more && n < w.depth() && end < safe; needs && (!ok || n < least) {
				t.Fatalf("%+v is read next, although the reader at %d has %d stretches", ahead, at, n)
			}
			served = served || end == ahead.after && n == least
		}
		if !ok {
			return
		}
		if !served || ahead.upTo > safe || ahead.upTo <= ahead.after {
			t.Fatalf("%+v is read without a need; all positions are safe up to %d", ahead, safe)
		}
		for _, s := range w.stretches {
			if s.after < ahead.upTo && ahead.after < s.through {
				t.Fatalf("%+v is read, although (%d, %d] was read", ahead, s.after, s.through)
			}
		}
	})
}

// Each reader gets every event once and in order, whatever the order of the readers. Pages
// that all readers have passed are dropped, and the bytes of the others are counted.
func TestReadersTakeEachEventOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, readers := windowed(rapid.SliceOfN(rapid.Int64Range(0, 30), 1, 4).Draw(t, "readers")...)
		used := 0
		for at := int64(0); at < 40; at += 10 {
			s := stretchOf(at, at+10, rapid.Int64Range(1, 10).Draw(t, "page"), true)
			used += s.bytes
			w.add(s)
		}
		used -= w.trim()
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			r := rapid.SampledFrom(readers).Draw(t, "reader")
			at := w.at[r]
			s := w.covering(at)
			if s == nil {
				continue // dropped, or at the end
			}
			if rapid.IntRange(0, 9).Draw(t, "evict") == 0 {
				freed, ok := w.evict()
				if used -= freed; ok && w.covering(at) != s {
					t.Fatalf("the stretch of the reader at %d was dropped", at)
				}
			}
			p, ok := s.page(at)
			if !ok || len(p.Events) == 0 || p.Events[0].GlobalPosition != at+1 || p.Positions.Checkpoint != at {
				t.Fatalf("the reader at %d got %+v", at, p)
			}
			if last := p.Events[len(p.Events)-1].GlobalPosition; last != p.Positions.Through || last-at != int64(len(p.Events)) {
				t.Fatalf("the reader at %d got %+v", at, p)
			}
			w.at[r] = p.Positions.Through
			used -= w.trim()
		}
		left := 0
		for _, s := range w.stretches {
			left += s.bytes
			if !w.wanted(s.pages[0].Positions.Through) {
				t.Fatalf("(%d, %d] is kept without a reader", s.after, s.through)
			}
		}
		if left != used {
			t.Fatalf("%d bytes are kept, %d are counted", left, used)
		}
	})
}

// The stretch that is needed last is dropped first, and no stretch that a reader is in.
func TestEvictionOrder(t *testing.T) {
	w, _ := windowed(5, 30)
	for at := int64(0); at < 60; at += 10 {
		w.add(stretchOf(at, at+10, 10, true))
	}
	var order []int64
	for {
		before := slices.Clone(w.stretches)
		if _, ok := w.evict(); !ok {
			break
		}
		for _, s := range before {
			if !slices.Contains(w.stretches, s) {
				order = append(order, s.after)
			}
		}
	}
	if want := []int64{50, 20, 40, 10}; !slices.Equal(order, want) {
		t.Errorf("dropped the stretches after %v, want %v", order, want)
	}
}

// A page that is taken from the middle has the rest of its events and gaps.
func TestPageFromTheMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Page{Positions: frontier.Page{Checkpoint: 10, Through: 30}, Full: true}
		for at := int64(11); at <= 30; at++ {
			if rapid.Bool().Draw(t, "visible") {
				p.Events = append(p.Events, store.PersistedEvent{GlobalPosition: at})
			} else {
				p.gap(at, at)
			}
		}
		at := rapid.Int64Range(10, 29).Draw(t, "at")
		rest, ok := p.from(at)
		if !ok || rest.Positions.Checkpoint != at || rest.Positions.Through != 30 || !rest.Full {
			t.Fatalf("from %d: %+v, %v", at, rest, ok)
		}
		var positions []int64
		for _, e := range rest.Events {
			positions = append(positions, e.GlobalPosition)
		}
		for _, m := range rest.Positions.Missing {
			for p := m.First; p <= m.Last; p++ {
				positions = append(positions, p)
			}
		}
		slices.Sort(positions)
		for i := range int(30 - at) {
			if i >= len(positions) || positions[i] != at+1+int64(i) {
				t.Fatalf("from %d: %v", at, positions)
			}
		}
		if len(positions) != int(30-at) {
			t.Fatalf("from %d: %v", at, positions)
		}
	})
	counted := Page{Positions: frontier.Page{Checkpoint: 10, Through: 30}, Void: store.Missing{Count: 1}}
	if _, ok := counted.from(11); ok {
		t.Error("from divided a sum of missing positions")
	}
	if _, ok := counted.from(10); !ok {
		t.Error("from did not return the whole page")
	}
}
