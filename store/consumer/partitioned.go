package consumer

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/store"
)

// Partitioned is a Consumer whose events may be handled by several goroutines and
// workers at the same time, as far as they have different keys. So Handle must be
// safe for concurrent use.
//
// Events of one key are handled in order, one after the other, and each of them
// once. Across keys there is no order. Two events of two keys that one append
// wrote are handled in two transactions. What Handle reads of other keys may be
// before or after any of their events.
//
// Let Handle write rows of the event's key only. A row that all keys write, such
// as a total, makes the partitions wait for each other, and two of them may
// deadlock: keep one for each [Delivery].Partition and add them up in a view.
type Partitioned interface {
	Consumer
	// Partitions returns how many partitions there are to be. The worker asks
	// once, at its start.
	Partitions() Partitions
}

// MaxPartitions is the highest Count, 256.
const MaxPartitions = partition.MaxCount

// Partitions is what a build wishes for a consumer. Workers change the number of
// partitions while they run, once all that have the consumer wish for the same.
// Programs from before there were partitions wish for one.
type Partitions struct {
	// Count is how many there are to be, 1 to [MaxPartitions]. It is also the
	// most that can be handled at the same time.
	Count int
	// Key says which events must stay in order. The zero value is the aggregate's
	// id.
	Key Key
}

// Key says what the events that must stay in order have in common. Its zero value
// is the aggregate's id: of aggregates of different types with the same id, too.
type Key struct {
	name string
	of   func(store.PersistedEvent) string
}

// ByKey keeps the events of one key in order, where of returns an event's key. It must
// be pure: the same event, the same key, in every process and for ever. The name is
// recorded with the partitions, and must change when of does: first go back to
// Count 1 with the old key, then deploy the other one. It takes what a name of a
// consumer takes, 100 bytes at most.
//
// An aggregate whose events have different keys is handled in no order.
func ByKey(name string, of func(store.PersistedEvent) string) Key { return Key{name, of} }

// Name returns the name of the key, empty for the aggregate's id.
func (k Key) Name() string { return k.name }

// Of returns the key of an event.
func (k Key) Of(e store.PersistedEvent) string {
	if k.of == nil {
		return e.AggregateID
	}
	return k.of(e)
}

const maxKeyName = 100

// Check returns what is wrong with the partitions, nil if nothing is.
func (p Partitions) Check() error {
	switch name := p.Key.name; {
	case p.Count < 1 || p.Count > MaxPartitions:
		return fmt.Errorf("a Count of %d, allowed is 1 to %d", p.Count, MaxPartitions)
	case p.Key.of == nil && name == "":
		return nil
	case p.Key.of == nil:
		return fmt.Errorf("ByKey(%q) has no function", name)
	case strings.TrimSpace(name) == "":
		return errors.New("ByKey has no name: name what the function returns, such as \"customer\"")
	case len(name) > maxKeyName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("ByKey: the name %.120q is longer than %d bytes, or has control characters or invalid UTF-8", name, maxKeyName)
	}
	return nil
}
