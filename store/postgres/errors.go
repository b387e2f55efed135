package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// ErrDuplicateEventID reports that the log already has an event with this EventID. An earlier
// attempt at the append may have stored it.
var ErrDuplicateEventID = errors.New("an EventID must be unique in the log")

// ConflictError reports that an aggregate is not at the expected version. A ConflictError is
// [store.ErrOptimisticConcurrency].
type ConflictError struct {
	AggregateType string
	AggregateID   string
	Expected      store.ExpectedVersion
	// Actual is the aggregate's version, read after the append was refused. It is -1 if the
	// version could not be read.
	Actual int64
	// Err is the database's error. If Err is not nil, the transaction can only be rolled back.
	// If Err is nil, the transaction can still be used.
	Err error
}

func (e *ConflictError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "storepostgres: aggregate %s %s: expected %s", errtext.Unquoted(e.AggregateType), errtext.Value(e.AggregateID), e.Expected)
	if e.Actual >= 0 {
		fmt.Fprintf(&b, ", found version %d", e.Actual)
	}
	if e.Actual == e.Expected.Value() && e.Expected.IsExact() { // or it was reached since
		b.WriteString(", unless a BEFORE trigger drops the change of the aggregate's head")
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String() + ": reload the aggregate and decide again"
}

// Unwrap returns store.ErrOptimisticConcurrency and Err.
func (e *ConflictError) Unwrap() []error {
	if e.Err == nil {
		return []error{store.ErrOptimisticConcurrency}
	}
	return []error{store.ErrOptimisticConcurrency, e.Err}
}

// conflict reads the version of the aggregate. The read is a second statement, since the
// snapshot of the first was taken before it waited for the lock.
func (s *Store) conflict(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string, expected store.ExpectedVersion) *ConflictError {
	e := &ConflictError{AggregateType: aggregateType, AggregateID: aggregateID, Expected: expected}
	err := tx.QueryRowContext(ctx, s.sql.headVersion, aggregateType, aggregateID).Scan(&e.Actual)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		e.Actual, e.Err = -1, err
	}
	return e
}

// appendError classifies the error of an INSERT.
func appendError(aggregateType, aggregateID string, expected store.ExpectedVersion, err error) error {
	conflict := &ConflictError{AggregateType: aggregateType, AggregateID: aggregateID, Expected: expected, Actual: -1, Err: err}
	switch pgdriver.SQLState(err) {
	case pgdriver.SerializationFailure:
		return conflict
	case pgdriver.UniqueViolation:
		key, detail := violation(err)
		switch {
		case strings.Contains(key, "aggregate_version"):
			return conflict
		case strings.Contains(key, "event_id"):
			err = fmt.Errorf("%w: %w: %s", ErrDuplicateEventID, err, detail)
		}
	}
	return fmt.Errorf("storepostgres: append to aggregate %s %s: %w", errtext.Unquoted(aggregateType), errtext.Value(aggregateID), pgdriver.Misfit(err))
}

// violation returns the columns of the violated unique index, and the server's detail. For a
// role that may not read the columns, the server omits them. violation then returns the
// constraint's name.
func violation(err error) (key, detail string) {
	constraint, detail := pgdriver.Violation(err)
	// The detail has this form in every language: ... (column, column)=(value, value) ...
	if _, columns, ok := strings.Cut(detail, "("); ok {
		columns, _, _ = strings.Cut(columns, ")")
		return columns, detail
	}
	return constraint, detail
}
