package reader

import (
	"cmp"
	"maps"
	"slices"
)

// window holds the pages for the readers that follow it. Its methods decide, and use neither
// clock nor database. The caller holds the lock of Ahead.
type window struct {
	view
	at            map[*Reader]int64 // positions of the readers that follow
	stretches     []*Stretch        // stretches that were read, in order of position, without overlaps
	inFlight      []*Stretch        // stretches being read or counted, in order of their start
	width         int               // average bytes of an event of the latest read; 0: unknown
	atMemoryLimit bool              // memory had no room for another read
}

func newWindow(v view) *window { return &window{view: v, at: map[*Reader]int64{}} }

// depth returns how many stretches a reader should have before it, with the stretch of its
// next page. A scoped window has one more: one stretch is counted while the next is read.
func (w *window) depth() int {
	if w.scoped {
		return 3
	}
	return 2
}

// reading returns the stretch that is being read, nil if there is none.
func (w *window) reading() *Stretch {
	for _, s := range w.inFlight {
		if !s.isRead {
			return s
		}
	}
	return nil
}

// covering returns the stretch that contains the position after at, nil if there is none.
func (w *window) covering(at int64) *Stretch {
	for _, s := range w.stretches {
		if s.after <= at && at < s.through {
			return s
		}
	}
	return nil
}

// next returns the positions to read next, and the number of stretches before the reader that
// has the fewest. The positions follow the stretches before that reader. final returns the
// last final position after a position.
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

// begins returns the start of the first stretch after a position.
func (w *window) begins(after int64) int64 {
	for _, s := range w.stretches {
		if s.after > after {
			return s.after
		}
	}
	return Unbounded
}

// add inserts a stretch that was read.
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

// trim drops the pages that all readers have passed, and returns their bytes.
func (w *window) trim() (freed int) {
	least := int64(Unbounded)
	for _, at := range w.at {
		least = min(least, at)
	}
	w.stretches = slices.DeleteFunc(w.stretches, func(s *Stretch) bool {
		for len(s.pages) > 0 && s.pages[0].Positions.Through <= least {
			freed += s.shorten()
		}
		return len(s.pages) == 0
	})
	return freed
}

// evict drops the stretch that is needed last, and returns its bytes. It does not drop a
// stretch from which a reader takes pages. It returns false if there is no other stretch.
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

// distance returns the positions between a stretch and the nearest reader before it, 0 if a
// reader is in it.
func (w *window) distance(s *Stretch) int64 {
	nearest := int64(Unbounded)
	for _, at := range w.at {
		if at < s.through {
			nearest = min(nearest, max(s.after-at, 0))
		}
	}
	return nearest
}
