package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

var (
	// ErrOptimisticConcurrency reports that the aggregate was not at the expected version.
	// Another transaction may have appended to the aggregate first. Read the aggregate again
	// and decide again.
	ErrOptimisticConcurrency = errors.New("store: the aggregate is not at the expected version")

	// ErrNoEvents reports an append without events.
	ErrNoEvents = errors.New("store: no events to append")
)

// EventStore appends events. *postgres.Store of package store/postgres implements EventStore.
type EventStore interface {
	// Append appends events inside tx. All events belong to one aggregate. Append returns
	// ErrOptimisticConcurrency if the aggregate is not at the expected version.
	Append(ctx context.Context, tx *sql.Tx, expected ExpectedVersion, events []Event) (AppendResult, error)
}

// ExpectedVersion is the version that an append demands of the aggregate. The zero value is
// NoStream, so that an append without a version cannot overwrite anything.
type ExpectedVersion struct {
	any     bool
	version int64
}

// Any accepts all versions of the aggregate.
func Any() ExpectedVersion { return ExpectedVersion{any: true} }

// NoStream demands that the aggregate has no events yet.
func NoStream() ExpectedVersion { return Exact(0) }

// Exact demands that the aggregate's last event has version n. Exact(0) is NoStream.
func Exact(n int64) ExpectedVersion { return ExpectedVersion{version: n} }

// IsAny reports whether v accepts all versions.
func (v ExpectedVersion) IsAny() bool { return v.any }

// IsNoStream reports whether v demands that the aggregate has no events yet.
func (v ExpectedVersion) IsNoStream() bool { return !v.any && v.version == 0 }

// IsExact reports whether v demands that the aggregate has events and that the last event has
// version Value.
func (v ExpectedVersion) IsExact() bool { return v.version != 0 }

// Value returns the version that v demands. It is 0 unless IsExact.
func (v ExpectedVersion) Value() int64 { return v.version }

// String returns v as the Go call that makes v.
func (v ExpectedVersion) String() string {
	switch {
	case v.IsAny():
		return "Any"
	case v.IsNoStream():
		return "NoStream"
	default:
		return fmt.Sprintf("Exact(%d)", v.version)
	}
}

// AppendResult is the outcome of an append.
type AppendResult struct {
	Events          []PersistedEvent // as persisted, in the order given
	GlobalPositions []int64          // one per event
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
