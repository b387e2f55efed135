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

// ErrDuplicateEventID reports that the log has an event with this EventID
// already, perhaps from an earlier attempt at the same append.
var ErrDuplicateEventID = errors.New("an EventID must be unique in the log")

// ConflictError reports that an aggregate is not at the expected version. It
// is [store.ErrOptimisticConcurrency].
type ConflictError struct {
	AggregateType string
	AggregateID   string
	Expected      store.ExpectedVersion
	// Actual is the aggregate's version as read after the refusal, -1 if it
	// could not be read.
	Actual int64
	// Err is the database's error, after which the transaction can only be
	// rolled back. If it is nil, the transaction can go on.
	Err error
}

func (e *ConflictError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "storepostgres: aggregate %s %s: expected %s", errtext.Word(e.AggregateType), errtext.Value(e.AggregateID), e.Expected)
	if e.Actual >= 0 {
		fmt.Fprintf(&b, ", found version %d", e.Actual)
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

// conflict looks where the aggregate is. A second statement, for the first
// one's snapshot is from before it waited for the lock.
func (s *Store) conflict(ctx context.Context, tx *sql.Tx, aggregateType, aggregateID string, expected store.ExpectedVersion) *ConflictError {
	e := &ConflictError{AggregateType: aggregateType, AggregateID: aggregateID, Expected: expected}
	err := tx.QueryRowContext(ctx, s.sql.headVersion, aggregateType, aggregateID).Scan(&e.Actual)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		e.Actual, e.Err = -1, err
	}
	return e
}

// appendError tells the errors of an INSERT apart.
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
	return fmt.Errorf("storepostgres: append to aggregate %s %s: %w", errtext.Word(aggregateType), errtext.Value(aggregateID), err)
}

// violation returns the columns of the unique index that err is about, or the
// constraint's name where the server hides the columns, as it does from roles
// that may not read them; and the server's words for it.
func violation(err error) (key, detail string) {
	constraint, detail := pgdriver.Violation(err)
	// In every language: ... (column, column)=(value, value) ...
	if _, columns, ok := strings.Cut(detail, "("); ok {
		columns, _, _ = strings.Cut(columns, ")")
		return columns, detail
	}
	return constraint, detail
}
