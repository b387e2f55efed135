package frontier

import (
	"slices"

	"github.com/pgfrontier/worker/store"
)

// doubt is a range of positions that were missing when a fence closed. Its owners may own some
// of them. Other doubts share the slice owners: do not modify it in place.
type doubt struct {
	store.Range
	owners []*holder
}

// doubts are ascending and disjoint. A doubt ends with its owners: a position appears only
// when its owner ends.
type doubts struct {
	all   []doubt
	spans []store.Range // of all; published Values share the slice: do not modify it in place
}

func (d *doubts) published() []store.Range { return d.spans[:len(d.spans):len(d.spans)] }

// last returns the highest position in doubt, 0 if there is none.
func (d *doubts) last() int64 {
	if len(d.all) == 0 {
		return 0
	}
	return d.all[len(d.all)-1].Last
}

// add records a missing range as doubt, as far as the owners may own it. The range lies above
// all other doubts.
func (d *doubts) add(missing store.Range, owners []*holder) {
	for _, piece := range attribute(missing, owners) {
		d.all = append(d.all, piece)
		d.spans = append(d.spans, piece.Range)
		for _, h := range piece.owners {
			h.owns = true
		}
	}
}

// join adds possible owners to every doubt.
func (d *doubts) join(owners []*holder) {
	if len(owners) == 0 {
		return
	}
	for i := range d.all {
		d.all[i].owners = slices.Concat(d.all[i].owners, owners)
		for _, h := range owners {
			h.owns = true
		}
	}
}

// review drops owners that ended or were narrowed. It drops the doubts without owners: their
// positions are void, or visible to later snapshots.
func (d *doubts) review() {
	old := d.all
	*d = doubts{}
	for _, o := range old {
		for _, h := range o.owners {
			h.owns = false
		}
	}
	for _, o := range old {
		d.add(o.Range, o.owners)
	}
}

// attribute splits a range where the reach of an owner ends. It leaves out the positions that
// no owner may own.
func attribute(s store.Range, owners []*holder) []doubt {
	living := owners
	if slices.ContainsFunc(owners, func(h *holder) bool { return !h.mayOwnAbove(s.First - 1) }) {
		living = slices.DeleteFunc(slices.Clone(owners), func(h *holder) bool { return !h.mayOwnAbove(s.First - 1) })
	}
	if len(living) == 0 {
		return nil
	}
	first := doubt{s, living}
	for _, h := range living {
		first.Last = min(first.Last, h.reach())
	}
	if first.Last == s.Last {
		return []doubt{first}
	}
	return append([]doubt{first}, attribute(store.Range{First: first.Last + 1, Last: s.Last}, living)...)
}
