package receipt

import (
	"time"

	"github.com/pgfrontier/worker/internal/partition"
)

// Move is an operation that has moved the checkpoint of a unit.
type Move struct {
	ID       int64
	Slots    partition.Range // of the unit
	From, To int64
	At       time.Time
}

// uncovers returns the positions whose receipts for some slots a move deletes or does not write, none
// if first is above last. Backwards, it deletes the region with the position, and the regions of former
// units above the position.
func (m *Move) uncovers(slots partition.Range) (first, last int64) {
	own := slots.Within(m.Slots)
	switch forwards := m.To > m.From; {
	case own && forwards:
		return m.From + 1, m.To
	case own:
		return Begin(m.To), m.To
	case forwards:
		return 1, 0
	}
	return Begin(m.To), m.From
}

// ExplainedBy returns the ID of the last of the moves that together explain the finding, 0 if they do
// not. Moves explain positions that were passed without a receipt before them. They explain an Unknown
// if they have left the receipts of only some partitions.
func (f *Finding) ExplainedBy(moves []Move) (id int64) {
	if f.Fault == Unknown {
		for _, m := range moves {
			first, last := m.uncovers(m.Slots)
			if last = max(last, m.From); m.Slots != partition.All && first <= f.Last && f.First <= last {
				id = max(id, m.ID)
			}
		}
		return id
	}
	if f.Fault != Uncovered {
		return 0
	}
	next := f.First
	for last := int64(0); next <= f.Last && next != last; {
		last = next
		for _, m := range moves {
			if first, until := m.uncovers(f.Slots); !f.after.After(m.At) && first <= next && next <= until {
				next, id = until+1, max(id, m.ID)
			}
		}
	}
	if next <= f.Last {
		return 0
	}
	return id
}
