package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Store is a table of jobs: what a worker runs, and what others ask about. Jobs are
// enqueued by an INSERT of yours.
type Store[R any] struct {
	*rows
	scan func(Row) (R, error)
}

// rows is a Store without the type of its records.
type rows struct {
	db       pgdriver.Pool
	settings settings
	bad      error // of what NewStore was given

	mu   sync.Mutex
	made bool
	sql  statements
}

// NewStore describes a table of jobs. It does nothing yet: what is wrong with the
// options, Start of a worker and each method return.
func NewStore[R any](db *sql.DB, o Options[R]) *Store[R] {
	s, err := o.settings()
	if db == nil {
		err = errtext.Join(errors.New("db is nil: open one with sql.Open"), err)
	}
	if err != nil {
		err = fmt.Errorf("jobs/table: %w: %w", ErrInvalidConfig, err)
	}
	return &Store[R]{&rows{db: pgdriver.NewPool(db), settings: s, bad: err}, o.Scan}
}

// statements looks the table up, once it has been found as it must be.
func (s *rows) statements(ctx context.Context) (statements, error) {
	if s.bad != nil {
		return statements{}, s.bad
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made {
		return s.sql, nil
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return statements{}, fmt.Errorf("jobs/table: take a connection: %w", err)
	}
	defer conn.Close()
	_, made, findings, err := inspect(ctx, conn, s.settings, "")
	if err == nil && len(findings) > 0 {
		err = unfit(findings)
	}
	if err != nil {
		return statements{}, err
	}
	s.sql, s.made = made, true
	return made, nil
}

func unfit(findings []string) error {
	if len(findings) == 1 {
		return fmt.Errorf("%w: %s", ErrUnfit, findings[0])
	}
	return fmt.Errorf("%w:\n%s", ErrUnfit, strings.Join(findings, "\n"))
}

// Requeue queues a job again, whatever its state, due at a time; the zero time is at
// once. It clears cancel, and leaves num_failures and num_resets. A run of the job that
// is under way loses it, see [ErrClaimLost]: a handler that wants to run its own job
// again returns [RequeueAfter]. The error is [ErrNotFound] if there is no such row. If
// another transaction holds the row, Requeue tries again for ten seconds, then that is
// the error.
func (s *rows) Requeue(ctx context.Context, id int64, after time.Time) error {
	q, err := s.statements(ctx)
	if err != nil {
		return err
	}
	due := sql.NullTime{Time: after, Valid: !after.IsZero()}
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	held := false
	for {
		var mine, requeued bool
		err := s.db.QueryRowContext(ctx, q.requeue, id, due).Scan(&mine, &requeued)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("%w: %d in %s", ErrNotFound, id, s.settings.table)
		case err != nil && held && ctx.Err() != nil:
			err = errHeld
		case err == nil && mine && !requeued:
			err = errUnchanged
		case pgdriver.IsConflict(err), err == nil && !mine:
			if held = true; backoff.Sleep(ctx, heldPause) {
				continue
			}
			err = errHeld
		}
		if err != nil {
			return fmt.Errorf("jobs/table: requeue job %d: %w", id, errtext.Of(err))
		}
		return nil
	}
}

// CountByState counts the rows of the table that meet the Condition and are in one of
// the states. Give the column state an index if there are many.
func (s *rows) CountByState(ctx context.Context, of ...State) (n int64, err error) {
	return ask[int64](ctx, s, func(q statements) string { return q.count }, of)
}

// Exists reports whether there is such a row.
func (s *rows) Exists(ctx context.Context, of ...State) (bool, error) {
	return ask[bool](ctx, s, func(q statements) string { return q.exists }, of)
}

func ask[T any](ctx context.Context, s *rows, statement func(statements) string, of []State) (answer T, err error) {
	q, err := s.statements(ctx)
	if err != nil {
		return answer, err
	}
	names := make([]string, len(of))
	for i, one := range of {
		if !isState(one) {
			return answer, fmt.Errorf("jobs/table: there is no state %s", errtext.Value(one))
		}
		names[i] = string(one)
	}
	if len(of) == 0 {
		return answer, errors.New("jobs/table: name at least one state")
	}
	if err := s.db.QueryRowContext(ctx, statement(q), "{"+strings.Join(names, ",")+"}").Scan(&answer); err != nil {
		return answer, fmt.Errorf("jobs/table: count the rows of %s: %w", s.settings.table, errtext.Of(err))
	}
	return answer, nil
}

func isState(s State) bool {
	for _, one := range states {
		if s == one {
			return true
		}
	}
	return false
}

// MaxDurationInQueue returns how long the job has been due that has been due for
// longest: since queued_at, process_after or, after a failure, finished_at and
// RetryAfter. 0: none is due.
func (s *rows) MaxDurationInQueue(ctx context.Context) (time.Duration, error) {
	q, err := s.statements(ctx)
	if err != nil {
		return 0, err
	}
	var n int64
	if err := s.db.QueryRowContext(ctx, q.longest).Scan(&n); err != nil {
		return 0, fmt.Errorf("jobs/table: look how long the rows of %s wait: %w", s.settings.table, errtext.Of(err))
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Check reports what keeps a worker with this role from running: columns that are not
// there or of the wrong type, states that the table refuses, expressions that
// PostgreSQL does not take, privileges. Start of a worker checks the same.
func (s *rows) Check(ctx context.Context) error {
	if s.bad != nil {
		return s.bad
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs/table: take a connection: %w", err)
	}
	defer conn.Close()
	return s.check(ctx, conn, "")
}

// check finds the table once, on one connection: a search path that a handler leaves
// behind in a session then leads to no other table.
func (s *rows) check(ctx context.Context, on store.Querier, hostname string) error {
	if err := pgdriver.CheckWrites(ctx, on); err != nil {
		return fmt.Errorf("jobs/table: %w", err)
	}
	found, made, findings, err := inspect(ctx, on, s.settings, hostname)
	if err != nil {
		return err
	}
	if len(findings) > 0 {
		return unfit(findings)
	}
	grants, err := found.lacks(ctx, on)
	if err != nil {
		return err
	}
	if len(grants) > 0 {
		return fmt.Errorf("jobs/table: %w: %s", ErrPrivileges, strings.Join(grants, "; "))
	}
	if findings, err = made.tries(ctx, on); err != nil {
		return err
	}
	if len(findings) > 0 {
		return unfit(findings)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sql, s.made = made, true
	return nil
}
