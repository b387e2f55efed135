// Package partition says which events a part of a consumer handles.
//
// A key hashes to one of [Slots] slots. A unit is a consumer's name with a range
// of slots: "totals_v1#400-7ff" handles the keys of slots 400 to 7ff, in
// hexadecimal. A consumer that is not split has all slots, and its unit has the
// plain name. A unit never changes its slots: a split or a merge replaces units.
//
// The names are durable: checkpoints are kept under them. So neither [Slot] nor
// [Name] may ever change.
package partition

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
)

// Slots is how many slots there are.
const Slots = 4096

// MaxCount is the highest number of partitions: each has 16 slots or more.
const MaxCount = 256

// separator stands between a consumer's name, which has none, and the slots.
const separator = "#"

// Range are slots, the first and the last included.
type Range struct{ First, Last int }

// All are the slots of a consumer that is not split.
var All = Range{0, Slots - 1}

// Slot returns the slot of a key: the first 12 bits of its SHA-256. In SQL, its
// three digits are
//
//	left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 3)
func Slot(key string) int {
	var room [128]byte // an array of its own spares most keys an allocation
	sum := sha256.Sum256(append(room[:0], key...))
	return int(sum[0])<<4 | int(sum[1])>>4
}

// Size is how many slots the range has.
func (r Range) Size() int { return r.Last - r.First + 1 }

// Has reports whether a slot is one of the range's.
func (r Range) Has(slot int) bool { return r.First <= slot && slot <= r.Last }

// Within reports whether all slots of the range are in another.
func (r Range) Within(other Range) bool { return other.First <= r.First && r.Last <= other.Last }

// String is how the range stands in a unit's name, empty for [All].
func (r Range) String() string {
	if r == All {
		return ""
	}
	return fmt.Sprintf("%03x-%03x", r.First, r.Last)
}

// Name returns the name of the unit that handles a consumer's slots.
func Name(consumer string, r Range) string {
	if r == All {
		return consumer
	}
	return consumer + separator + r.String()
}

// Prefix is how the names of all units of a consumer begin, but for the plain
// name.
func Prefix(consumer string) string { return consumer + separator }

// Parse returns the consumer and the slots of a unit. ok is false for a name that
// [Name] never returns.
func Parse(unit string) (consumer string, r Range, ok bool) {
	consumer, slots, split := strings.Cut(unit, separator)
	if !split {
		return consumer, All, true
	}
	first, last, _ := strings.Cut(slots, "-")
	a, errA := strconv.ParseUint(first, 16, 12)
	b, errB := strconv.ParseUint(last, 16, 12)
	r = Range{int(a), int(b)}
	if errA != nil || errB != nil || r.First > r.Last || Name(consumer, r) != unit {
		return "", Range{}, false
	}
	return consumer, r, true
}

// Consumer returns the consumer of a unit.
func Consumer(unit string) string {
	consumer, _, _ := strings.Cut(unit, separator)
	return consumer
}

// Cut returns the n ranges of a consumer in n partitions: as even as can be, in
// order.
func Cut(n int) []Range {
	all := make([]Range, n)
	for i := range all {
		all[i] = Range{i * Slots / n, (i+1)*Slots/n - 1}
	}
	return all
}

// Target returns the range of [Cut] that has a slot.
func Target(n, slot int) Range {
	i := ((slot+1)*n - 1) / Slots // the last partition that begins at or below the slot
	return Range{i * Slots / n, (i+1)*Slots/n - 1}
}

// Children returns the range, cut at all borders between n partitions: itself
// if there is none within.
func (r Range) Children(n int) (all []Range) {
	for first := r.First; first <= r.Last; {
		last := min(r.Last, Target(n, first).Last)
		all = append(all, Range{first, last})
		first = last + 1
	}
	return all
}

// Tile reports whether parts, which are in order, have each slot of a range once
// and no other.
func Tile(of Range, parts []Range) bool {
	next := of.First
	for _, p := range parts {
		if p.First != next || p.Last < p.First {
			return false
		}
		next = p.Last + 1
	}
	return next == of.Last+1
}
