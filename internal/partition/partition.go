// Package partition defines which events a part of a consumer handles.
//
// A key hashes to one of [Slots] slots. A unit is a consumer's name with a range of slots. For
// example, "totals_v1#400-7ff" handles the keys of slots 400 to 7ff, in hexadecimal. A
// consumer that is not split has all slots, and its unit has the plain name. A unit never
// changes its slots: a split or a merge replaces units.
//
// Checkpoints are stored under the names of units. So neither [Slot] nor [Name] may ever
// change.
package partition

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
)

// Slots is the number of slots.
const Slots = 4096

// MaxCount is the highest number of partitions: each partition has at least 16 slots.
const MaxCount = 256

// separator separates a consumer's name from the slots. A consumer's name does not contain it.
const separator = "#"

// Range is a range of slots, including First and Last.
type Range struct{ First, Last int }

// All is the range of a consumer that is not split.
var All = Range{0, Slots - 1}

// Slot returns the slot of a key: the first 12 bits of the key's SHA-256. In SQL, the slot's
// three hexadecimal digits are
//
//	left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 3)
func Slot(key string) int {
	var room [128]byte // a local array avoids an allocation for most keys
	sum := sha256.Sum256(append(room[:0], key...))
	return int(sum[0])<<4 | int(sum[1])>>4
}

// Size returns the number of slots of the range.
func (r Range) Size() int { return r.Last - r.First + 1 }

// Has reports whether a slot is in the range.
func (r Range) Has(slot int) bool { return r.First <= slot && slot <= r.Last }

// Within reports whether all slots of the range are in another range.
func (r Range) Within(other Range) bool { return other.First <= r.First && r.Last <= other.Last }

// String returns the range as it appears in a unit's name, empty for [All].
func (r Range) String() string {
	if r == All {
		return ""
	}
	return fmt.Sprintf("%03x-%03x", r.First, r.Last)
}

// Name returns the name of the unit that handles a range of a consumer's slots.
func Name(consumer string, r Range) string {
	if r == All {
		return consumer
	}
	return consumer + separator + r.String()
}

// Parse returns the consumer and the slots of a unit. ok is false for a name that [Name] never
// returns.
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

// Cut returns the n ranges of a consumer in n partitions, in order. Their sizes differ by at
// most one.
func Cut(n int) []Range {
	all := make([]Range, n)
	for i := range all {
		all[i] = Range{i * Slots / n, (i+1)*Slots/n - 1}
	}
	return all
}

// Target returns the range of [Cut] that contains a slot.
func Target(n, slot int) Range {
	i := ((slot+1)*n - 1) / Slots // the last partition that begins at or below the slot
	return Range{i * Slots / n, (i+1)*Slots/n - 1}
}

// Children returns the range, cut at all borders between n partitions. Without a border inside
// the range, it returns the range itself.
func (r Range) Children(n int) (all []Range) {
	for first := r.First; first <= r.Last; {
		last := min(r.Last, Target(n, first).Last)
		all = append(all, Range{first, last})
		first = last + 1
	}
	return all
}

// Tile reports whether parts cover each slot of a range once and no other slot. The parts must
// be in order.
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
