package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/store"
)

// Store is a table of jobs. A worker runs its jobs, and any program may query it. The program
// enqueues jobs by INSERT.
type Store[R any] struct {
	*rows
	scan func(Row) (R, error)
}

// rows is a Store without the type of its records.
type rows struct {
	db       pgdriver.Pool
	settings settings
	bad      error // error of the options

	mu   sync.Mutex
	made bool
	sql  statements
}

// NewStore describes a table of jobs. If an option is invalid, Start of a worker and each method of
// the store return the error.
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

// statements returns the SQL of the table. The first call inspects the table.
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

// Requeue queues a job again, whatever its state. The job is due at after; the zero time is at
// once. Requeue clears cancel, and keeps num_failures and num_resets. A current run of the job
// loses it, see [ErrClaimLost]. A handler that wants to run its own job again returns
// [RequeueAfter] instead. If there is no such row, Requeue returns [ErrNotFound]. If another
// transaction holds the row locked, Requeue retries for ten seconds and then returns an error.
func (s *rows) Requeue(ctx context.Context, id int64, after time.Time) error {
	q, err := s.statements(ctx)
	if err != nil {
		return err
	}
	const heldPause = 200 * time.Millisecond // before a locked row is tried again
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

// CountByState counts the rows of the table that meet the Condition and are in one of the states.
// For a large table, create an index on the column state.
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
		if !slices.Contains(states, one) {
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

// MaxDurationInQueue returns how long the oldest due job has been due. A job is due since
// queued_at, process_after or, after a failure, finished_at plus RetryAfter. The result is 0 if no
// job is due.
func (s *rows) MaxDurationInQueue(ctx context.Context) (time.Duration, error) {
	q, err := s.statements(ctx)
	if err != nil {
		return 0, err
	}
	var n int64
	if err := s.db.QueryRowContext(ctx, q.longest).Scan(&n); err != nil {
		return 0, fmt.Errorf("jobs/table: read how long the rows of %s wait: %w", s.settings.table, errtext.Of(err))
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Check returns an error for everything that keeps a worker with this role from running. These are
// missing columns, wrong types, states that the table refuses, invalid expressions, and missing
// privileges. Start of a worker runs the same checks.
func (s *rows) Check(ctx context.Context) error {
	if s.bad != nil {
		return s.bad
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("jobs/table: take a connection: %w", err)
	}
	defer conn.Close()
	if err := pgdriver.CheckWrites(ctx, conn); err != nil {
		return fmt.Errorf("jobs/table: %w", err)
	}
	return s.check(ctx, conn, "")
}

// check resolves the table once, on one connection. A search path that a handler leaves in a
// session later leads to no other table.
func (s *rows) check(ctx context.Context, on store.Querier, hostname string) error {
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
