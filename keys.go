package worker

import (
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/store"
)

// slotOf returns the slot of an event's key. An error says that the consumer's own
// key panics.
func (d *declared) slotOf(e *store.PersistedEvent) (slot int, err error) {
	if d.key.Name() == "" {
		return partition.Slot(e.AggregateID), nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("worker: the key %q panicked for the event at position %d, so nobody knows whose it is: %s", d.key.Name(), e.GlobalPosition, errtext.Panic(v))
		}
	}()
	return partition.Slot(d.key.Of(*e)), nil
}
