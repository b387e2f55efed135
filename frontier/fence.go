package frontier

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pgfrontier/worker/store"
)

// maxFences allows one fence that waits for its holders, and one fence for later positions.
const maxFences = 2

// sighting is a holder as one scan showed it.
type sighting struct {
	ID          string  `json:"id"`          // virtualtransaction
	PID         int     `json:"pid"`         // 0: a prepared transaction
	Rest        string  `json:"rest"`        // while Rest is not empty and stays the same, the holder draws nothing
	State       string  `json:"state"`       // empty: hidden from this role
	Application string  `json:"application"` // application_name
	GID         string  `json:"gid"`         // of a prepared transaction
	Age         float64 `json:"age"`         // of the transaction, in seconds; 0: hidden from this role
}

// holder is a transaction that holds the lock and may own missing positions. The machine's
// fences and doubts share it.
type holder struct {
	sighting
	ended bool
	stale bool // held a fence open for longer than staleAfter; delays no other fence
	owns  bool // may own positions in doubt

	// While the holder rests, it owns nothing above last: see narrow.
	last     int64
	haveLast bool
	narrowed bool // a scan after the read of last showed the same rest
}

// reach returns the highest position that the holder may own, among the positions drawn before
// the latest scan.
func (h *holder) reach() int64 {
	if h.narrowed {
		return h.last
	}
	return math.MaxInt64
}

func (h *holder) mayOwnAbove(position int64) bool { return !h.ended && h.reach() > position }

// observe records what the latest scan shows of the holder. It reports whether the scan
// narrows the holder. A scan narrows a holder that ran nothing since the scan before last was
// read. All positions of such a holder were drawn before the read of last, so none is above
// last. Any other change discards last.
func (h *holder) observe(s sighting) (narrowed bool) {
	same := s.Rest != "" && s.Rest == h.Rest
	h.sighting = s
	if !same {
		h.haveLast, h.narrowed = false, false
		return false
	}
	narrowed = h.haveLast && !h.narrowed
	h.narrowed = h.haveLast
	return narrowed
}

// fence proves that all missing positions up to h are void, once its holders have ended. Every
// transaction that drew a position up to h is a holder or had ended before the scan.
type fence struct {
	h       int64 // visible before the scan that found the holders
	holders []*holder
	opened  time.Time
}

// owners returns the holders that may still own a position in (safe, f.h].
func (f *fence) owners(safe int64) []*holder {
	var owners []*holder
	for _, h := range f.holders {
		if h.mayOwnAbove(safe) {
			owners = append(owners, h)
		}
	}
	return owners
}

// narrow records the sequence's last value for the holders at rest. The value was read after
// the latest scan.
func (m *proof) narrow(last int64) {
	if !m.rules.named {
		return
	}
	for _, h := range m.holders {
		if h.Rest != "" && !h.haveLast {
			h.last, h.haveLast = last, true
		}
	}
}

// matchHolders compares the holders of a scan with the holders of the scan before.
func (m *proof) matchHolders(shown []sighting) {
	seen := make(map[string]*holder, len(shown))
	var renamed []*holder
	review := false
	for _, s := range shown {
		if seen[s.ID] != nil {
			continue // pg_locks can show a lock twice
		}
		h := m.holders[s.ID]
		if h == nil {
			h = &holder{}
			if s.PID == 0 && unnumbered(s.ID) {
				renamed = append(renamed, h)
			}
		}
		seen[s.ID] = h
		if h.observe(s) && h.last < m.doubts.last() {
			review = true
		}
	}
	for id, h := range m.holders {
		if seen[id] == nil {
			h.ended = true
			review = review || h.owns
		}
	}
	m.holders = seen
	for _, f := range m.fences {
		f.holders = append(f.holders, renamed...)
	}
	m.doubts.join(renamed)
	if review {
		m.doubts.review()
	}
}

// unnumbered reports whether id is the virtualtransaction of a transaction prepared on a
// server before 13.5 or 14.1. Such a server renames a transaction when it prepares it. The
// transaction may be any of the holders that ended, so it joins every fence and doubt.
func unnumbered(id string) bool { return strings.HasPrefix(id, "-1/") }

// open opens a fence for the missing positions up to the head. The head was read before the
// scan that found the holders.
func (m *proof) open(now time.Time) {
	newest := m.safe
	if n := len(m.fences); n > 0 {
		newest = max(newest, m.fences[n-1].h)
	}
	if m.head <= newest || len(m.fences) == maxFences {
		return
	}
	f := &fence{h: m.head, opened: now}
	for _, h := range m.holders {
		f.holders = append(f.holders, h)
		if m.first && h.Age >= m.rules.staleAfter.Seconds() {
			m.markStale(h)
		}
	}
	m.first, m.fenced = false, f.h
	m.fences = append(m.fences, f)
}

// age marks the holders stale that have kept a fence open for staleAfter.
func (m *proof) age(now time.Time) {
	for _, f := range m.fences {
		if now.Sub(f.opened) < m.rules.staleAfter {
			continue
		}
		for _, h := range f.owners(m.safe) {
			m.markStale(h)
		}
	}
}

func (m *proof) markStale(h *holder) {
	if !h.stale {
		h.stale = true
		m.newlyStale = append(m.newlyStale, h)
	}
}

// close closes fences, oldest first, as far as possible without a read of the missing
// positions.
func (m *proof) close() {
	m.closing = false
	for len(m.fences) > 0 {
		f := m.fences[0]
		if f.h > m.safe {
			owners := f.owners(m.safe)
			if slices.ContainsFunc(owners, m.waitsFor) {
				return
			}
			if len(owners) > 0 {
				m.closing = true
				return
			}
			m.advance(f.h)
		}
		m.fences = m.fences[1:]
	}
}

func (m *proof) waitsFor(h *holder) bool { return m.rules.strict || !h.stale }

// pass closes the oldest fence with doubts, as far as a read in a later snapshot reaches. A
// position that the read does not show belongs to a stale holder or is void. pass reports
// whether the fence is closed.
func (m *proof) pass(r tailRead) bool {
	f := m.fences[0]
	limit := min(f.h, m.head-m.rules.harborLag)
	to := limit
	if r.full {
		to = min(to, r.runs[len(r.runs)-1].Last)
	}
	if to > m.safe {
		owners := f.owners(m.safe)
		for _, gap := range subtract([]store.Range{{First: m.safe + 1, Last: to}}, r.runs) {
			m.doubts.add(gap, owners)
		}
		m.safe = to
	}
	if to < limit {
		return false
	}
	m.fences = m.fences[1:]
	return true
}
