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

// Partitioned is a Consumer whose events of different keys may be handled at the same time.
// Several goroutines and workers handle them, so Handle must be safe for concurrent use.
//
// Events of one key are handled in order, one after the other, and each exactly once. Across
// keys there is no order. Two events of one append are handled in two transactions if their
// keys differ. If Handle reads rows of another key, these rows may be from before or after any
// event of that key.
//
// Let Handle write only rows of the event's key. If all keys write one row, such as a total,
// the partitions wait for each other and may deadlock. Keep one such row per
// [Delivery].Partition, and add the rows up in a view.
type Partitioned interface {
	Consumer
	// Partitions returns the number of partitions and the key. The worker calls Partitions
	// once, at its start.
	Partitions() Partitions
}

// Partitions is the partition demand of a build for a consumer. Workers change the number of
// partitions while they run, once all workers that have the consumer demand the same. A build
// without partition support demands one partition.
type Partitions struct {
	// Count is the number of partitions, 1 to 256. At most Count calls of Handle
	// run at the same time.
	Count int
	// Key returns the key of an event. Events of one key stay in order. The zero value is the
	// aggregate's id.
	Key Key
}

// Key is the function from an event to its key. The zero value returns the aggregate's id.
// Aggregates of different types with the same id have the same key.
type Key struct {
	name string
	of   func(store.PersistedEvent) string
}

// ByKey returns a Key whose function is of. Events with the same key stay in order. of must be
// pure: the same event has the same key, in all processes and for ever.
//
// The name is recorded with the partitions, and must change when of changes. To change of,
// first deploy Count 1 with the old key, then deploy the other key. The name follows the rules
// of a consumer's name, with at most 100 bytes.
//
// Events of an aggregate that have different keys are handled in no order.
func ByKey(name string, of func(store.PersistedEvent) string) Key { return Key{name, of} }

// Name returns the name of the key, empty for the aggregate's id.
func (k Key) Name() string { return k.name }

// Of returns the key of e.
func (k Key) Of(e store.PersistedEvent) string {
	if k.of == nil {
		return e.AggregateID
	}
	return k.of(e)
}

const maxKeyName = 100

// Check returns an error if Count or Key is out of range.
func (p Partitions) Check() error {
	switch name := p.Key.name; {
	case p.Count < 1 || p.Count > partition.MaxCount:
		return fmt.Errorf("a Count of %d, allowed is 1 to %d", p.Count, partition.MaxCount)
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
