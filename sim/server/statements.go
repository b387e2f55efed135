package server

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/sim/harness"
)

// WaitBound bounds a wait of the harness for something that must come.
const WaitBound = 30 * time.Second

// statementBound bounds the harness's own statements, so that a run ends also
// if the server does not answer.
const statementBound = 30 * time.Second

// lockBound bounds the waits of these statements for a lock. It is below statementBound, so that
// the error says which was exceeded: a lock that is never let go is not the harness's failure.
const lockBound = 4 * statementBound / 5

// pingBound bounds the question whether there is a server at all, before evidence is
// collected from it and the database is removed.
const pingBound = 5 * time.Second

// Bounded is a context with a bound of the harness, as long as this machine needs.
func (d *Database) Bounded(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.Bounds.Of(bound))
}

// Unable returns the error of a statement of the harness: a [harness.Error] if the server did not
// answer in time, or was not there. It returns err if a person has cancelled ctx.
func (d *Database) Unable(ctx context.Context, step string, bound time.Duration, err error) error {
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	return fmt.Errorf("sim: %s: %w", step, harness.Statement(step, d.Bounds.Of(bound), err))
}

// Mine returns err if a crash explains it, and otherwise Unable's error for a statement of many.
func (d *Database) Mine(ctx context.Context, err error) error {
	if d.Forgive(err) == nil {
		return err
	}
	return d.Unable(ctx, "a statement of the harness", statementBound, err)
}

// Forgive returns nil for an error that a Mortal server explains, which went away or had no room.
// It returns other errors, and those of the harness.
func (d *Database) Forgive(err error) error {
	var pg *pgconn.PgError
	switch {
	case !d.Mortal, harness.Is(err):
		return err
	case !errors.As(err, &pg):
		return nil // no answer
	}
	switch pg.Code[:2] {
	case "08", "53", "57", "58": // connection, resources, shutdown or crash, the system
		return nil
	}
	return err
}

// Steadily repeats what a crash has interrupted.
func (d *Database) Steadily(ctx context.Context, do func() error) error {
	for end := time.Now().Add(d.Bounds.Of(WaitBound)); ; {
		err := do()
		if why := d.gone.Load(); err != nil && why != nil {
			return *why
		}
		if err == nil || d.Forgive(err) != nil || time.Now().After(end) || !backoff.Sleep(ctx, 10*time.Millisecond) {
			return err
		}
	}
}

// Query is Steadily for statements of the harness. It returns the error of Mine.
func (d *Database) Query(ctx context.Context, do func() error) error {
	return d.Mine(ctx, d.Steadily(ctx, do))
}

// Lost records that the server does not come back, which ends all waits for it.
func (d *Database) Lost(why error) { d.gone.Store(&why) }

// GiveUp records as Lost, and returns, the error of a step that only the harness can fail at.
func (d *Database) GiveUp(step string, err error) error {
	err = harness.Failed(step, d.Bounds.Of(WaitBound), err)
	d.Lost(err)
	return err
}

// Answers reports whether the server answers the harness.
func (d *Database) Answers(ctx context.Context) bool {
	ctx, cancel := d.Bounded(ctx, pingBound)
	defer cancel()
	d.Refresh()
	for d.DB.PingContext(ctx) != nil {
		if d.gone.Load() != nil || !backoff.Sleep(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return true
}

// Insist calls ask until the answer is known, also while a server is away for a moment.
func (d *Database) Insist(ctx context.Context, ask func(context.Context) (known bool, err error)) error {
	bounded, cancel := d.Bounded(ctx, WaitBound)
	defer cancel()
	for {
		known, err := ask(bounded)
		switch why := d.gone.Load(); {
		case known && err == nil:
			return nil
		case why != nil:
			return *why
		case errors.Is(bounded.Err(), context.DeadlineExceeded):
			return harness.Failed("asking for the outcome of a transaction", d.Bounds.Of(WaitBound), errors.Join(err, bounded.Err()))
		case d.Forgive(err) != nil || !backoff.Sleep(ctx, 5*time.Millisecond):
			return errors.Join(err, ctx.Err())
		}
	}
}

// Over reports whether a transaction has ended. A transaction that a crash took back may not have
// used up its number. If another transaction has it now, Over reports on that one.
func (d *Database) Over(ctx context.Context, xid string) (bool, error) {
	var status *string
	err := d.DB.QueryRowContext(ctx, `SELECT pg_xact_status($1::text::xid8)`, xid).Scan(&status)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22023" { // xid is in the future
		return true, nil
	}
	return status == nil || *status != "in progress", err
}

// Column reads the only column of all rows.
func Column[T any](ctx context.Context, d *Database, query string, args ...any) ([]T, error) {
	return Rows(ctx, d, func(r *sql.Rows, v *T) error { return r.Scan(v) }, query, args...)
}

// Rows reads all rows, with a second try after a crash.
func Rows[T any](ctx context.Context, d *Database, scan func(*sql.Rows, *T) error, query string, args ...any) (all []T, err error) {
	err = d.Query(ctx, func() error {
		all, err = read(ctx, d.DB, scan, query, args...)
		return err
	})
	return all, err
}

func read[T any](ctx context.Context, db *sql.DB, scan func(*sql.Rows, *T) error, query string, args ...any) ([]T, error) {
	r, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // Err has returned every error
	var all []T
	for r.Next() {
		var v T
		if err := scan(r, &v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, r.Err()
}

// Whose backends an administrator, or a failing server, ends: conditions on
// pg_stat_activity.
const (
	BatchBackends    = `backend_xid IS NOT NULL`
	LockBackends     = `xact_start IS NULL AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)`
	ListenerBackends = `query LIKE 'LISTEN %'`
	FrontierBackends = `query LIKE '%last_value%' AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)`
)

// Terminate ends one backend of a worker. It reports whether there was one.
func (d *Database) Terminate(ctx context.Context, who, whose string) (ended bool, err error) {
	err = d.DB.QueryRowContext(ctx, `
SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM (
	SELECT pid FROM pg_stat_activity
	WHERE datname = current_database() AND application_name = $1::text AND `+whose+`
	LIMIT 1) AS victim`, "sim "+who).Scan(&ended)
	return ended, d.Mine(ctx, err)
}

// snapshot is how a backup reads.
var snapshot = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}

// InSnapshot does something while a snapshot is held, and a lock of each table of the library
// that keeps no reader or writer out.
func (d *Database) InSnapshot(ctx context.Context, do func()) error {
	tx, err := d.DB.BeginTx(ctx, snapshot)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `
DO $$ DECLARE name TEXT; BEGIN
	FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = current_schema() AND tablename NOT LIKE 'sim%' ORDER BY 1 LOOP
		EXECUTE 'LOCK TABLE ' || name || ' IN ACCESS SHARE MODE';
	END LOOP;
END $$`); err != nil {
		return err
	}
	do()
	return nil
}
