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

// slotOf returns the slot of an event's key. An error says that the consumer's own
// key panics.
func (d *declared) slotOf(e *store.PersistedEvent) (int, error) {
	if d.key.Name() == "" {
		return partition.Slot(e.AggregateID), nil
	}
	key, err := d.keyOf(e)
	return partition.Slot(key), err
}

// keyError says that the consumer's own key panics.
type keyError string

func (e keyError) Error() string { return string(e) }

// keyOf returns the consumer's own key of an event.
func (d *declared) keyOf(e *store.PersistedEvent) (key string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = keyError(fmt.Sprintf("worker: the key %q panicked for the event at position %d (event %s, type %s), so nobody knows whose it is, and all partitions wait: mend its function, and deploy that: %s", d.key.Name(), e.GlobalPosition, e.EventID, errtext.Value(e.EventType), errtext.Panic(v)))
		}
	}()
	return d.key.Of(*e), nil
}

// orderOf returns what decides which events follow an event into the dead letters: its
// aggregate, or the consumer's own key, in ASCII if the database does not hold all of it.
func (d *declared) orderOf(e *store.PersistedEvent, ascii bool) (progress.Order, error) {
	if d.key.Name() == "" {
		return progress.Order{Type: e.AggregateType, ID: e.AggregateID}, nil
	}
	key, err := d.keyOf(e)
	if ascii {
		key = errtext.ASCII(key)
	}
	return progress.Order{ID: storable(key)}, err
}

// maxOrder is the longest key of dead letters, in bytes: they have an index by it.
const maxOrder = 500

// storable returns a key as dead letters have it. Where two become the same, their
// events wait for each other.
func storable(key string) string {
	key = strings.ReplaceAll(strings.ToValidUTF8(key, "?"), "\x00", "?")
	if len(key) <= maxOrder {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return strings.ToValidUTF8(key[:maxOrder], "") + " " + hex.EncodeToString(sum[:])
}

// deadLetterOf is an event on its way to the dead letters, among those of its order. If
// that is not known, it is the aggregate.
func deadLetterOf(e store.PersistedEvent, orders map[int64]progress.Order) progress.DeadLetter {
	o, known := orders[e.GlobalPosition]
	if !known {
		o = progress.Order{Type: e.AggregateType, ID: e.AggregateID}
	}
	return progress.DeadLetter{Order: o, Type: e.AggregateType, ID: e.AggregateID, Position: e.GlobalPosition, EventID: e.EventID, EventType: e.EventType}
}
