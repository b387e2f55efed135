package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Querier has the methods that *sql.DB, *sql.Conn and *sql.Tx share. Readers take a Querier, so
// that a read costs one round trip and no transaction of its own.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Log is an event log that can be read in the order of positions. A worker needs no other methods. A
// Log may also implement [ScopedReader], [SizedReader], [RangeReader], [AgeReader], [SequenceNamer]
// and [Binder]. They let the worker read with fewer statements or less memory, or prove more.
type Log interface {
	EventReader
	GlobalPositionReader
}

// EventReader reads a log in the order of positions. An event below the positions that were
// read may become visible later.
type EventReader interface {
	// ReadEvents returns at most limit visible events above position after, in order of position.
	ReadEvents(ctx context.Context, q Querier, after int64, limit int) ([]PersistedEvent, error)
}

// GlobalPositionReader reads the head of a log.
type GlobalPositionReader interface {
	// GetLatestGlobalPosition returns the highest visible position, 0 for an empty log.
	GetLatestGlobalPosition(ctx context.Context, q Querier) (int64, error)
}

// AggregateStreamReader reads the events of one aggregate.
type AggregateStreamReader interface {
	// ReadAggregateStream returns the events from fromVersion to toVersion, both included, in
	// order of version. A nil bound does not limit the stream.
	ReadAggregateStream(ctx context.Context, q Querier, aggregateType, aggregateID string, fromVersion, toVersion *int64) (Stream, error)
}

// ScopedReader is a Log that filters aggregate types in SQL. A consumer of some types crosses a
// stretch of other types in one step.
type ScopedReader interface {
	// ReadScoped returns the events that one snapshot shows in the range.
	ReadScoped(ctx context.Context, q Querier, r ScopedRange) (ScopedPage, error)
	// CountMissing sums up the positions in (after, through] that have no visible event of any
	// type. The sum comes from one snapshot. Workers call CountMissing for ranges whose
	// positions are all known to be visible or void.
	CountMissing(ctx context.Context, q Querier, after, through int64) (Missing, error)
}

// ScopedRange asks for at most Limit events of the aggregate types Types with After < position
// <= UpTo.
type ScopedRange struct {
	After, UpTo int64
	Types       []string
	Limit       int
	// MaxBytes bounds the payload and metadata of the page, in bytes. It is above 0. The last
	// event may exceed MaxBytes. A log may ignore MaxBytes.
	MaxBytes int
}

// ScopedPage is the answer to a ScopedRange. All fields come from one snapshot.
type ScopedPage struct {
	Events []PersistedEvent // in order of position
	// Through is the position up to which the page is complete. Through is the position of the
	// last event if Limit or MaxBytes was reached, otherwise UpTo.
	Through int64
}

// SizedReader is a Log that bounds a read by bytes. The worker's memory is then bounded,
// whatever the size of the events.
type SizedReader interface {
	// ReadSized returns visible events above position after, in order of position and from one
	// snapshot. It returns at most limit events. The page ends with the event whose payload and
	// metadata bring the sum to maxBytes. more reports whether further events may follow.
	ReadSized(ctx context.Context, q Querier, after int64, limit, maxBytes int) (events []PersistedEvent, more bool, err error)
}

// RangeReader is a Log that reads scattered positions in one statement. A consumer with many
// positions in doubt reads all of them at once.
type RangeReader interface {
	// ReadRanges returns at most limit visible events in the ranges, in order of position and
	// from one snapshot. The ranges are ascending and disjoint.
	ReadRanges(ctx context.Context, q Querier, ranges []Range, limit int) ([]PersistedEvent, error)
}

// AgeReader is a Log that returns how long events have waited. A worker calls ReadAges once for
// all consumers that are behind. Without AgeReader, the worker does not know the age of the
// events that a consumer has not handled.
type AgeReader interface {
	// ReadAges returns, per place and in the order of places, the first visible event above
	// the place. All answers come from one snapshot.
	ReadAges(ctx context.Context, q Querier, places []Place) ([]Waiting, error)
}

// Place is the position up to which a consumer has read, and the consumer's types.
type Place struct {
	After int64    `json:"after"`
	Types []string `json:"types"` // nil: all
}

// Waiting is the first visible event above a Place.
type Waiting struct {
	Position int64         // 0: there is none
	Age      time.Duration // since it was created, by the database's clock; at most 100 years
}

// Range is a range of positions, both ends included.
type Range struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// Count returns the number of positions in the range.
func (r Range) Count() int64 { return r.Last - r.First + 1 }

// Holds reports whether position is in the range.
func (r Range) Holds(position int64) bool { return r.First <= position && position <= r.Last }

// Missing sums up positions without a visible event.
type Missing struct {
	Range       // from the lowest to the highest of them
	Count int64 // how many; Range means something if above 0
}

// Binder is a Log whose reads can be bound to one server. A worker binds its log at the start.
// After Bind, a search path that a handler leaves in its session cannot lead to another table.
// A connection to a standby, an abandoned primary or a restored backup yields an error and no
// events.
//
// Without Bind, the worker reads the incarnation in a separate statement after a read.
type Binder interface {
	// Bind finds the log's tables as q's session sees them now.
	//
	// incarnation is an SQL expression of type text that returns the incarnation of the server
	// that evaluates it. It is NULL or fails on a server without an incarnation.
	Bind(ctx context.Context, q Querier, incarnation string) (BoundLog, error)
	// Binds reports whether Bind binds all of log. A type that embeds a Binder inherits Bind,
	// and the inherited Bind would bypass the type's own ReadEvents. The worker reads the
	// incarnation after a read of such a log.
	Binds(log Log) bool
}

// BoundLog is a Log over tables that were found once. Only the reads of At prove the
// incarnation. If the log is a SequenceNamer, so is the BoundLog, with qualified names.
type BoundLog interface {
	Log
	// At returns a log whose reads fail with ErrIncarnation unless the snapshot that answers is of
	// this incarnation. The returned log implements the same interfaces as the log that was bound.
	At(incarnation string) Log
}

// ErrIncarnation reports that another server has executed a read, or the same server after a
// crash, a restore or a restart.
var ErrIncarnation = errors.New("store: the server that answered is not the one that was asked for, or has restarted since: a connection leads to a standby, an abandoned primary or a restored copy, or its search path to another table")

// SequenceNamer is a Log that names the sequence of its positions. The worker then proves from
// the sequence's locks that a missing position is void. Without SequenceNamer, the worker
// awaits all transactions of the database.
type SequenceNamer interface {
	// PositionColumn returns the table and its column whose default draws from the sequence.
	// The table is spelled as in SQL, quoted where needed.
	PositionColumn() (table, column string)
}

// TxLog is a log whose read methods take a transaction.
type TxLog interface {
	ReadEvents(ctx context.Context, tx *sql.Tx, after int64, limit int) ([]PersistedEvent, error)
	GetLatestGlobalPosition(ctx context.Context, tx *sql.Tx) (int64, error)
}

// FromTxLog adapts a TxLog. A read outside of a transaction runs in a read-only transaction of
// its own and costs two more round trips. If l is a SequenceNamer, so is the result. Of nil it is nil.
func FromTxLog(l TxLog) Log {
	if l == nil {
		return nil
	}
	if n, ok := l.(SequenceNamer); ok {
		return namedTxLog{txLog{l}, n}
	}
	return txLog{l}
}

type txLog struct{ log TxLog }

type namedTxLog struct {
	txLog
	SequenceNamer
}

type txBeginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

func (t txLog) ReadEvents(ctx context.Context, q Querier, after int64, limit int) (events []PersistedEvent, err error) {
	err = inTx(ctx, q, func(tx *sql.Tx) error {
		events, err = t.log.ReadEvents(ctx, tx, after, limit)
		return err
	})
	return events, err
}

func (t txLog) GetLatestGlobalPosition(ctx context.Context, q Querier) (position int64, err error) {
	err = inTx(ctx, q, func(tx *sql.Tx) error {
		position, err = t.log.GetLatestGlobalPosition(ctx, tx)
		return err
	})
	return position, err
}

func inTx(ctx context.Context, q Querier, read func(*sql.Tx) error) error {
	if tx, ok := q.(*sql.Tx); ok {
		return read(tx)
	}
	b, ok := q.(txBeginner)
	if !ok {
		return fmt.Errorf("store: a %T can begin no transaction, which this log's readers need: pass a *sql.DB, *sql.Conn or *sql.Tx", q)
	}
	tx, err := b.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // a no-op after Commit
	if err := read(tx); err != nil {
		return err
	}
	return tx.Commit()
}
