package partitions

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// Key keeps the events of a consumer in order. The zero value is the key of the aggregate.
type Key struct {
	consumer.Key
}

// KeyError is the error of a consumer's own key that panics.
type KeyError string

func (e KeyError) Error() string { return string(e) }

// SlotOf returns the slot of an event's key. It returns a [KeyError] if the consumer's own
// key panics.
func (k Key) SlotOf(e *store.PersistedEvent) (int, error) {
	if k.Name() == "" {
		return partition.Slot(e.AggregateID), nil
	}
	key, err := k.of(e)
	return partition.Slot(key), err
}

// OrderOf returns the order of an event: the aggregate, or the consumer's own key. Later
// events of the same order follow an event into the dead letters. The order is in ASCII if
// the database's encoding lacks a character of it. OrderOf returns a [KeyError] if the
// consumer's own key panics.
func (k Key) OrderOf(e *store.PersistedEvent, ascii bool) (progress.Order, error) {
	if k.Name() == "" {
		return progress.Order{Type: e.AggregateType, ID: e.AggregateID}, nil
	}
	key, err := k.of(e)
	if ascii {
		key = errtext.ASCII(key)
	}
	return progress.Order{ID: storable(key)}, err
}

// of returns the consumer's own key of an event.
func (k Key) of(e *store.PersistedEvent) (key string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = KeyError(fmt.Sprintf("worker: the key %q panicked for the event at position %d (event %s, type %s), so its partition is unknown, and all partitions wait: mend its function, and deploy that: %s", k.Name(), e.GlobalPosition, e.EventID, errtext.Value(e.EventType), errtext.Panic(v)))
		}
	}()
	return k.Of(*e), nil
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
