// Package receipt counts the events that a consumer has handled, so that the log can be compared
// with the count later.
//
// A [Sum] does not depend on the order of its events, and sums can be added. So late events need no
// place in an order, and the sums of units add up to that of their consumer. The sums are modulo
// 2^62. If one event is missing or too many, the difference of the positions is its position.
package receipt

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// Sum is the sum of some events.
type Sum struct {
	Events    int64 `json:"events"`
	Positions int64 `json:"positions"`
	Hash      int64 `json:"hash"` // of positions and IDs
}

// Event is one event.
type Event struct {
	Position int64
	ID       uuid.UUID
}

// Sum returns the sum of one event.
func (e *Event) Sum() Sum {
	h := mix(mix(binary.BigEndian.Uint64(e.ID[:8])+uint64(e.Position)) + binary.BigEndian.Uint64(e.ID[8:]))
	return Sum{1, e.Position & mask, int64(h & mask)}
}

// mix is the finalizer of SplitMix64: Steele, Lea and Flood, Fast Splittable Pseudorandom Number
// Generators, 2014.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// mask keeps the lower 62 bits, so that two sums can be added as BIGINT.
const mask = 1<<62 - 1

// Plus returns the sum of the events of s and of o.
func (s Sum) Plus(o Sum) Sum {
	return Sum{s.Events + o.Events, (s.Positions + o.Positions) & mask, (s.Hash + o.Hash) & mask}
}

// Minus returns s without the events of o.
func (s Sum) Minus(o Sum) Sum {
	return Sum{s.Events - o.Events, (s.Positions - o.Positions) & mask, (s.Hash - o.Hash) & mask}
}

// Region is what a unit has handled from the position First to the position Last.
type Region struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Sum
}

// Row is a row of the table of receipts: a region that has ended or, with an Event, one event that
// was handled after the region of its position had ended. Such a row has no sum.
type Row struct {
	Region
	Event *uuid.UUID `json:"event,omitempty"`
}

// width is the number of positions after which a region ends. The events of a region lie between two
// multiples of it.
const width = 1 << 14

// Begin returns the first position that a region with a position may have.
func Begin(position int64) int64 { return max(position-position%width, 1) }

// Parse returns the region of a checkpoint's row, nil if text is empty.
func Parse(text string) (*Region, error) {
	if text == "" {
		return nil, nil
	}
	var n []int64
	if err := json.Unmarshal([]byte("["+strings.Trim(text, "{}")+"]"), &n); err != nil || len(n) != 5 {
		return nil, fmt.Errorf("the receipt %q is not a list of five numbers (%w): set it to NULL", text, cmp.Or(err, fmt.Errorf("it has %d", len(n))))
	}
	return &Region{n[0], n[1], Sum{n[2], n[3], n[4]}}, nil
}

// String returns the text that Parse reads.
func (r *Region) String() string {
	return fmt.Sprintf("{%d,%d,%d,%d,%d}", r.First, r.Last, r.Events, r.Positions, r.Hash)
}

// Since returns the parameters of a change from before, which ended at position from, to r. add reports
// whether the sum is to be added to that of the row, so that a second batch of the same events shows,
// whatever its worker has loaded.
func (r *Region) Since(before *Region, from int64) (params []any) {
	if r == nil {
		return []any{nil, nil, nil, nil, nil, false}
	}
	d, add := r.Sum, before != nil && before.First == r.First && before.Last == from
	if add {
		d = r.Minus(before.Sum)
	}
	return []any{r.First, r.Last, d.Events, d.Positions, d.Hash, add}
}

// Pass returns the region of a unit that moves from one position to another and handles events, and
// the rows to insert. The events are in order of position, and those up to from come first.
//
// If the region does not end at from, something else has moved the checkpoint. Then the region ends
// where it does, and another begins.
func (r *Region) Pass(from, to int64, events []Event) (next Region, rows []Row) {
	next = Region{First: from + 1, Last: from}
	switch {
	case r == nil:
	case r.Last == from:
		next = *r
	case r.First <= r.Last:
		rows = append(rows, Row{Region: *r})
	}
	advance := func(to int64) {
		if begin := to - to%width; begin > next.First {
			next.Last = begin - 1
			rows, next = append(rows, Row{Region: next}), Region{First: begin}
		}
		next.Last = max(to, next.Last)
	}
	for i := range events {
		e := &events[i] // a variable e would allocate each event, and copies make Sum slower
		if e.Position < next.First {
			rows = append(rows, Row{Region{First: e.Position, Last: e.Position}, &e.ID})
			continue
		}
		if e.Position > from {
			advance(e.Position)
		}
		next.Sum = next.Plus(e.Sum())
	}
	advance(to)
	return next, rows
}
