package frontier

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// Holder is a transaction that holds the frontier back, or that may own
// positions in doubt.
type Holder struct {
	VirtualTransaction string
	PID                int    // of its backend; 0: a prepared transaction
	GID                string // of a prepared transaction, where known
	ApplicationName    string
	// State of its session, as in pg_stat_activity. Empty if this role may
	// not see it (GRANT pg_read_all_stats) or it is prepared.
	State string
	Age   time.Duration // of the transaction at the latest scan; 0: not visible
	Stale bool          // it held a fence open for longer than StaleAfter
	// Passed: it is stale, and Safe goes past its positions (SkipStale). Its
	// events come late. Otherwise all events behind its positions wait.
	Passed bool
}

// Remedy says what a person can do about it.
func (h Holder) Remedy() string {
	switch {
	case h.PID != 0:
		return "let its application end it, or SELECT pg_terminate_backend(" + strconv.Itoa(h.PID) + ")"
	case h.GID != "":
		return "COMMIT PREPARED or ROLLBACK PREPARED '" + h.GID + "'"
	default:
		return "COMMIT PREPARED or ROLLBACK PREPARED, see pg_prepared_xacts"
	}
}

func (m *machine) export(h *holder) Holder {
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

// takeTurned returns those that became stale since the last call.
func (m *machine) takeTurned() []Holder {
	var all []Holder
	for _, h := range m.turned {
		all = append(all, m.export(h))
	}
	m.turned = nil
	return all
}

// blocked lists those that keep fences open or may own positions in doubt, the
// oldest first.
func (m *machine) blocked() []Holder {
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
