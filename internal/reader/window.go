package reader

import (
	"cmp"
	"maps"
	"slices"
	"unsafe"

	"github.com/pgfrontier/worker/store"
)

// window is what is kept of the log for the readers that follow it. Its methods
// decide, and touch neither clock nor database; Ahead holds its lock.
type window struct {
	view
	at        map[*Reader]int64 // where those stand that follow
	stretches []*Stretch        // that are read, in order of position; they do not overlap
	flying    []*Stretch        // that are being read, or counted, in order of beginning
	width     int               // bytes of an event of the last read, on average; 0: not known
	crowded   bool              // there was no room to read on
}

func newWindow(v view) *window { return &window{view: v, at: map[*Reader]int64{}} }

// depth is how many stretches a reader is to have before it, the one that it
// takes pages of included. Of those that are to be counted as well, one is
// counted while the next is read.
func (w *window) depth() int {
	if w.scoped {
		return 3
	}
	return 2
}

// reading returns the stretch that is being read, nil if none is.
func (w *window) reading() *Stretch {
	for _, s := range w.flying {
		if !s.isRead {
			return s
		}
	}
	return nil
}

// covering returns the stretch that has the position behind at, nil if none has.
func (w *window) covering(at int64) *Stretch {
	for _, s := range w.stretches {
		if s.after <= at && at < s.through {
			return s
		}
	}
	return nil
}

// next returns the positions that are to be read next: those behind the end of
// what lies before the reader that has least, and how many stretches that has.
// final is how far all is final behind a position.
func (w *window) next(final func(after int64) int64) (ahead span, least int, ok bool) {
	least = w.depth()
	for _, at := range slices.Sorted(maps.Values(w.at)) {
		n, more := 0, true
		for s := w.covering(at); s != nil && more; s = w.covering(at) {
			n, at, more = n+1, s.through, s.more
		}
		if upTo := min(final(at), w.begins(at)); more && n < least && upTo > at {
			least, ahead, ok = n, span{at, upTo}, true
		}
	}
	return ahead, least, ok
}

// begins is where the first stretch behind a position begins.
func (w *window) begins(after int64) int64 {
	for _, s := range w.stretches {
		if s.after > after {
			return s.after
		}
	}
	return Unbounded
}

// add takes a stretch that was read.
func (w *window) add(s *Stretch) {
	i, _ := slices.BinarySearchFunc(w.stretches, s.after, func(s *Stretch, at int64) int { return cmp.Compare(s.after, at) })
	w.stretches = slices.Insert(w.stretches, i, s)
}

// wanted reports whether a reader stands below a position.
func (w *window) wanted(through int64) bool {
	for _, at := range w.at {
		if at < through {
			return true
		}
	}
	return false
}

// trim drops the pages that all readers have behind them, and returns their
// bytes.
func (w *window) trim() (freed int) {
	least := int64(Unbounded)
	for _, at := range w.at {
		least = min(least, at)
	}
	w.stretches = slices.DeleteFunc(w.stretches, func(s *Stretch) bool {
		for len(s.pages) > 0 && s.pages[0].Look.Through <= least {
			freed += s.shorten()
		}
		return len(s.pages) == 0
	})
	return freed
}

// evict drops the stretch that is needed last, and returns its bytes. It spares
// a stretch from which a reader takes pages: then it returns false.
func (w *window) evict() (freed int, ok bool) {
	last, longest := -1, int64(0)
	for i, s := range w.stretches {
		if d := w.distance(s); d > longest && s.isCounted {
			last, longest = i, d
		}
	}
	if last < 0 {
		return 0, false
	}
	freed = w.stretches[last].bytes
	w.stretches = slices.Delete(w.stretches, last, last+1)
	return freed, true
}

// distance is how far a stretch is from the nearest reader before it, 0 if one
// takes pages of it.
func (w *window) distance(s *Stretch) int64 {
	nearest := int64(Unbounded)
	for _, at := range w.at {
		if at < s.through {
			nearest = min(nearest, max(s.after-at, 0))
		}
	}
	return nearest
}

// size is what an event takes of the memory.
func size(e *store.PersistedEvent) int {
	return int(unsafe.Sizeof(*e)) + len(e.AggregateType) + len(e.AggregateID) + len(e.EventType) + len(e.Payload) + len(e.Metadata)
}

func sizeOf(events []store.PersistedEvent) (bytes int) {
	for i := range events {
		bytes += size(&events[i])
	}
	return bytes
}

// width is the size of an event, on average; 0 if there are none.
func width(events []store.PersistedEvent) int {
	if len(events) == 0 {
		return 0
	}
	return sizeOf(events) / len(events)
}
