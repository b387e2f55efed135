package frontier

import (
	"cmp"
	"slices"
	"time"

	"github.com/pgfrontier/worker/observe"
)

// Holder is a transaction that holds the frontier back, or that may own
// positions in doubt.
type Holder = observe.BlockingTransaction

func (m *proof) export(h *holder) Holder {
	return Holder{
		VirtualTransaction: h.ID,
		PID:                h.PID,
		GID:                h.GID,
		ApplicationName:    h.Application,
		State:              h.State,
		Age:                time.Duration(h.Age * float64(time.Second)),
		Stale:              h.stale,
		Passed:             !m.waitsFor(h),
	}
}

// takeNewlyStale returns the holders that became stale since the last call.
func (m *proof) takeNewlyStale() []Holder {
	var all []Holder
	for _, h := range m.newlyStale {
		all = append(all, m.export(h))
	}
	m.newlyStale = nil
	return all
}

// blocked returns the holders that keep fences open or may own positions in doubt, oldest
// first.
func (m *proof) blocked() []Holder {
	keeping := map[*holder]bool{}
	for _, f := range m.fences {
		for _, h := range f.owners(m.safe) {
			keeping[h] = true
		}
	}
	for _, h := range m.holders {
		if h.owns {
			keeping[h] = true
		}
	}
	all := make([]Holder, 0, len(keeping))
	for h := range keeping {
		all = append(all, m.export(h))
	}
	slices.SortFunc(all, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.VirtualTransaction, b.VirtualTransaction))
	})
	return all
}
