package consume

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
)

// slotOf returns the slot of an event's key. It returns an error if the consumer's own key
// panics.
func (d *spec) slotOf(e *store.PersistedEvent) (int, error) {
	if d.key.Name() == "" {
		return partition.Slot(e.AggregateID), nil
	}
	key, err := d.keyOf(e)
	return partition.Slot(key), err
}

// keyError is the error of a consumer's own key that panics.
type keyError string

func (e keyError) Error() string { return string(e) }

// keyOf returns the consumer's own key of an event.
func (d *spec) keyOf(e *store.PersistedEvent) (key string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = keyError(fmt.Sprintf("worker: the key %q panicked for the event at position %d (event %s, type %s), so its partition is unknown, and all partitions wait: mend its function, and deploy that: %s", d.key.Name(), e.GlobalPosition, e.EventID, errtext.Value(e.EventType), errtext.Panic(v)))
		}
	}()
	return d.key.Of(*e), nil
}

// orderOf returns the order of an event: the aggregate, or the consumer's own key. Later
// events of the same order follow an event into the dead letters. The order is in ASCII if
// the database's encoding lacks a character of it.
func (d *spec) orderOf(e *store.PersistedEvent, ascii bool) (progress.Order, error) {
	if d.key.Name() == "" {
		return progress.Order{Type: e.AggregateType, ID: e.AggregateID}, nil
	}
	key, err := d.keyOf(e)
	if ascii {
		key = errtext.ASCII(key)
	}
	return progress.Order{ID: storable(key)}, err
}

// maxOrder is the longest key of dead letters, in bytes. Their index limits it.
const maxOrder = 500

// storable returns a key as dead letters store it. If two keys become the same, their
// events wait for each other.
func storable(key string) string {
	key = strings.ReplaceAll(strings.ToValidUTF8(key, "?"), "\x00", "?")
	if len(key) <= maxOrder {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return strings.ToValidUTF8(key[:maxOrder], "") + " " + hex.EncodeToString(sum[:])
}

// deadLetterOf returns the dead letter of an event. Its order is the aggregate if orders
// has no entry for the event.
func deadLetterOf(e store.PersistedEvent, orders map[int64]progress.Order) progress.DeadLetter {
	o, known := orders[e.GlobalPosition]
	if !known {
		o = progress.Order{Type: e.AggregateType, ID: e.AggregateID}
	}
	return progress.DeadLetter{Order: o, Type: e.AggregateType, ID: e.AggregateID, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType}
}
