package store

import (
	"errors"
	"fmt"
)

var (
	// ErrOptimisticConcurrency reports that the aggregate was not at the
	// expected version, or that another transaction appended to it first.
	// Reload the aggregate and decide again.
	ErrOptimisticConcurrency = errors.New("store: the aggregate is not at the expected version")

	// ErrNoEvents reports an append without events.
	ErrNoEvents = errors.New("store: no events to append")
)

// ExpectedVersion is what an append demands of the aggregate's version. Its
// zero value is Any.
type ExpectedVersion struct {
	exact   bool
	version int64
}

// Any demands nothing.
func Any() ExpectedVersion { return ExpectedVersion{} }

// NoStream demands that the aggregate has no events yet.
func NoStream() ExpectedVersion { return Exact(0) }

// Exact demands that the aggregate's last event has version n. Exact(0) is
// NoStream.
func Exact(n int64) ExpectedVersion { return ExpectedVersion{exact: true, version: n} }

// Version returns the demanded version; ok is false for Any.
func (v ExpectedVersion) Version() (n int64, ok bool) { return v.version, v.exact }

func (v ExpectedVersion) String() string {
	switch {
	case !v.exact:
		return "any version"
	case v.version == 0:
		return "no stream"
	default:
		return fmt.Sprintf("version %d", v.version)
	}
}

// AppendResult is the outcome of an append.
type AppendResult struct {
	Events          []PersistedEvent // as persisted, in the order given
	GlobalPositions []int64          // one for each event
}

// FromVersion returns the aggregate's version before the append.
func (r AppendResult) FromVersion() int64 {
	if len(r.Events) == 0 {
		return 0
	}
	return r.Events[0].AggregateVersion - 1
}

// ToVersion returns the aggregate's version after the append.
func (r AppendResult) ToVersion() int64 {
	if len(r.Events) == 0 {
		return 0
	}
	return r.Events[len(r.Events)-1].AggregateVersion
}
