package worker

import (
	"fmt"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// keys tells which events are a part's.
type keys struct {
	of    consumer.Key
	slots partition.Range
	err   error // why the key of an event is not known
}

// has reports whether an event is the part's. It also does if that is not known:
// then err says why.
func (k *keys) has(e *store.PersistedEvent) bool {
	slot, err := slotOf(k.of, e)
	if err != nil {
		k.err = err
		return true
	}
	return k.slots.Has(slot)
}

// failure returns why it is not known whose the events of the last read are.
func (k *keys) failure() error {
	err := k.err
	k.err = nil
	return err
}

// slotOf returns the slot of an event's key.
func slotOf(of consumer.Key, e *store.PersistedEvent) (slot int, err error) {
	if of.Name() == "" {
		return partition.Slot(e.AggregateID), nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("worker: the key %q panicked for the event at position %d, so nobody knows whose it is: %s", of.Name(), e.GlobalPosition, errtext.Panic(v))
		}
	}()
	return partition.Slot(of.Of(*e)), nil
}
