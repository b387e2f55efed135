// Package store defines the types of an event log: events and versions. It also defines the
// interfaces through which a worker reads a log. The package accesses no database; package
// store/postgres does.
package store

import (
	"database/sql"
	"time"

	"github.com/google/uuid"
)

// EarliestTime and LatestTime bound the times that this module reads from tables. The bounds
// are the range of time.Time and of its JSON, in microseconds. A row of another program may
// have a time outside of the bounds, also '-infinity' or 'infinity'. Such a time is read as the
// nearer bound. Do not change the two variables.
var (
	EarliestTime = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC) // the first after the zero Time
	LatestTime   = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
)

// NullString is a text that may be absent.
type NullString = sql.NullString

// Event is an event to append. The store assigns the aggregate version and the global position.
type Event struct {
	AggregateType string
	AggregateID   string
	EventType     string
	EventID       uuid.UUID // identifies the event; unique in the log
	EventVersion  int       // schema version of the payload
	Payload       []byte
	Metadata      []byte // JSON, or nil
	TraceID       NullString
	CorrelationID NullString
	CausationID   NullString
	CreatedAt     time.Time // zero: the database's clock at the append
}

// PersistedEvent is an event as stored in the log.
type PersistedEvent struct {
	// GlobalPosition is drawn from a sequence. Positions are unique and ascending, with gaps.
	// Transactions commit in any order: a lower position may become visible after a higher one.
	GlobalPosition int64
	// AggregateVersion counts the events of one aggregate from 1, without gaps.
	AggregateVersion int64

	AggregateType string
	AggregateID   string
	EventType     string
	EventID       uuid.UUID
	EventVersion  int
	Payload       []byte
	Metadata      []byte
	TraceID       NullString
	CorrelationID NullString
	CausationID   NullString
	CreatedAt     time.Time // from EarliestTime to LatestTime
}

// Stream is the history of one aggregate, or a part of the history, in order of version.
type Stream struct {
	AggregateType string
	AggregateID   string
	Events        []PersistedEvent
}

// Len returns the number of events.
func (s Stream) Len() int { return len(s.Events) }

// IsEmpty reports whether the stream has no events.
func (s Stream) IsEmpty() bool { return len(s.Events) == 0 }

// Version returns the version of the last event. It is 0 if the stream has no events.
func (s Stream) Version() int64 {
	if len(s.Events) == 0 {
		return 0
	}
	return s.Events[len(s.Events)-1].AggregateVersion
}
