package pgdriver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/store"
)

// ErrSilent reports that the database did not answer in time.
var ErrSilent = errors.New("no answer in time")

// Reach repeats a step of a start while the database cannot be reached. The database may be
// down or restarting, all connections may be taken, or no server may accept writes yet. A step
// that exceeds its own bound counts as unanswered. Reach calls report for each failure, and
// pauses after it. After limit, Reach returns [refusal.ErrOutage] with the error of the last
// try. With limit 0, Reach tries until ctx ends. Any other error, such as a wrong password, is
// returned at once. of is the name of the package in Reach's own error.
func Reach(ctx context.Context, of string, limit time.Duration, report func(error), step func(ctx context.Context) error) error {
	began := time.Now()
	for failures := 1; ; failures++ {
		err := step(ctx)
		if ctx.Err() != nil {
			return err
		}
		if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrSilent) {
			err = fmt.Errorf("%w: %w", ErrSilent, err)
		}
		if !IsAway(err) {
			return err
		}
		if limit > 0 && time.Since(began) >= limit {
			return fmt.Errorf("%s: %w: gave up after %v: %w", of, refusal.ErrOutage, limit, err)
		}
		report(err)
		if !backoff.Sleep(ctx, backoff.Session(failures)) {
			return err
		}
	}
}

const (
	// answerTimeout bounds how long a start waits for the database's answer.
	answerTimeout = 10 * time.Second
	// checkTimeout bounds the checks of a database that answers. It is long, since a worker
	// should not stop because the database is slow after a failover.
	checkTimeout = time.Minute
)

var errSlow = fmt.Errorf("the checks of the database at the start took longer than %v: find out what keeps the server or the network busy: %w", checkTimeout, context.DeadlineExceeded)

// Checked runs the checks of a start once the database has answered. Both are bounded, and an
// error names the exceeded bound. [Reach] repeats checks that a time limit of the role ended.
// of is the name of the package in the errors.
func Checked(ctx context.Context, of string, db *sql.DB, checks func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("%s: %w", of, errSlow))
	defer cancel()
	if err := AnswersWithin(ctx, db, answerTimeout); err != nil {
		return fmt.Errorf("%s: %w", of, Unanswered(err))
	}
	err := CutOff(ctx, checks(ctx))
	if ctx.Err() == nil && IsTimeLimit(err) {
		err = fmt.Errorf("%w: a time limit of the session, such as statement_timeout or lock_timeout of the role, ended a check of the start: raise it if this goes on: %w", ErrSilent, err)
	}
	return err
}

// Unanswered says that an attempt to reach the database failed with err: whether the server was
// silent, answered with an error, or was not asked.
func Unanswered(err error) error {
	switch {
	case SQLState(err) != "" || isStandbyOnly(err):
		return fmt.Errorf("the database answers with an error: %w", err)
	case IsAway(err) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the database does not answer: check the address and that the server runs: %w", err)
	default: // such as a certificate that is refused, or a closed pool
		return fmt.Errorf("the database cannot be used: %w", err)
	}
}

// CheckWrites refuses a server or a session that is read-only.
func CheckWrites(ctx context.Context, on store.Querier) error {
	var readOnly bool
	if err := on.QueryRowContext(ctx, `SELECT current_setting('transaction_read_only')::boolean`).Scan(&readOnly); err != nil {
		return fmt.Errorf("read whether the server takes writes: %w", err)
	}
	if readOnly {
		return refusal.ErrStandby
	}
	return nil
}

// IsAway reports whether the database could not be reached.
func IsAway(err error) bool {
	return errors.Is(err, ErrSilent) || isStandbyOnly(err) || IsConnectionLoss(err) && !errors.Is(err, context.DeadlineExceeded)
}

// isStandbyOnly reports whether the driver found no primary although target_session_attrs
// requires one. During a failover there is none.
func isStandbyOnly(err error) bool {
	if err == nil || SQLState(err) != "" {
		return false
	}
	text := err.Error() // errors of lib/pq have no type
	return errors.Is(err, pgconn.ErrReadOnlyConnection) || errors.Is(err, pgconn.ErrStandbyConnection) ||
		strings.Contains(text, "session is read-only") || strings.Contains(text, "server is in hot standby mode")
}

// AnswersWithin is [Answers] within limit.
func AnswersWithin(ctx context.Context, db *sql.DB, limit time.Duration) error {
	bound, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w (%v)", ErrSilent, limit))
	defer cancel()
	err := CutOff(bound, Answers(bound, db))
	// A connect_timeout may be shorter than limit.
	var network net.Error
	if ctx.Err() == nil && !errors.Is(err, ErrSilent) && (errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()) {
		err = fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}
