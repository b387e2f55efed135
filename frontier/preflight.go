package frontier

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store"
)

// Errors of a database on which the frontier may not work for this connection or this role. A
// [SetupError] wraps them.
var (
	ErrInRecovery  = errors.New("the server is in recovery")
	ErrNoPrivilege = errors.New("a privilege is missing")
	ErrRowSecurity = errors.New("row-level security hides rows of the log")
)

// The other errors that a SetupError has as its Err.
var (
	errServerVersion   = errors.New("the server is too old")
	errTableNotFound   = errors.New("a table is missing")
	errColumnNotFound  = errors.New("the position column is missing")
	errSequenceUnknown = errors.New("the sequence behind the positions cannot be found")
	errSequenceCache   = errors.New("the sequence's cache is not 1")
	errSequenceStep    = errors.New("the sequence's increment is not 1")
	errSequenceCycle   = errors.New("the sequence cycles")
	errSequenceLow     = errors.New("positions may be below 1")
	errSequenceBehind  = errors.New("the log has positions above its sequence")
	errLogReplaced     = errors.New("the log's table or sequence was replaced")
)

// SetupError says why the frontier's proof does not hold on the database, and what to do about
// it.
type SetupError struct {
	Err    error // what does not hold, in general
	Detail string
	Remedy string
}

func (e *SetupError) Error() string {
	return fmt.Sprintf("frontier: %v: %s; %s", e.Err, e.Detail, e.Remedy)
}

// Unwrap returns Err.
func (e *SetupError) Unwrap() error { return e.Err }

func setupError(err error, remedy, detail string, args ...any) error {
	return &SetupError{Err: err, Detail: fmt.Sprintf(detail, args...), Remedy: remedy}
}

const oldestServer = 13

// origin is the source of a log's positions, as found at the start of a session. Its names are
// qualified and quoted.
type origin struct {
	database int64 // oid
	named    bool  // the fields below are known

	table, column string
	tableOID      int64

	sequence    string
	sequenceOID int64
	// file is the sequence's file node. RESTART changes the file node, and so does TRUNCATE
	// with RESTART IDENTITY.
	file int64
}

// key identifies the log in the settled table. The key contains the sequence's file, so a row
// written before a RESTART is not used.
func (o origin) key() int64 { return o.sequenceOID<<32 | o.file }

// Source names the table and the sequence of a log's positions. The names are qualified and
// quoted. They are empty if the log does not name its sequence.
type Source struct {
	Database        int64 // oid of the database
	Table, Sequence string
}

// Preflight checks whether the frontier can work: the server, the tables, the privileges and
// the sequence of the positions. If a check fails, the error is a [SetupError].
func (c Config) Preflight(ctx context.Context, q store.Querier) (Source, error) {
	if err := c.validate(); err != nil {
		return Source{}, err
	}
	o, err := c.resolve(ctx, q)
	return Source{o.database, o.table, o.sequence}, err
}

// resolve finds the source of the log's positions. It returns an error if the proof does not
// hold for the source.
func (c Config) resolve(ctx context.Context, q store.Querier) (origin, error) {
	var o origin
	if err := o.checkServer(ctx, q); err != nil {
		return o, err
	}
	for _, t := range []ident.Table{c.Token, c.Settled, c.Changes} {
		if err := checkOwnTable(ctx, q, t); err != nil {
			return o, err
		}
	}
	named, ok := c.Log.(store.SequenceNamer)
	if !ok {
		return o, nil
	}
	if err := o.find(ctx, q, named); err != nil {
		return o, err
	}
	return o, o.checkLowest(ctx, q)
}

// find finds the table, the column and the sequence of the log's positions.
func (o *origin) find(ctx context.Context, q store.Querier, log store.SequenceNamer) error {
	table, column := log.PositionColumn()
	if err := o.findColumn(ctx, q, table, column); err != nil {
		return err
	}
	o.named = true
	return o.findSequence(ctx, q)
}

func (o *origin) checkServer(ctx context.Context, q store.Querier) error {
	var s server
	err := q.QueryRowContext(ctx, `
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
	has_table_privilege('pg_catalog.pg_locks', 'SELECT'),
	(SELECT oid::bigint FROM pg_database WHERE datname = current_database())`).Scan(&s.version, &s.recovering, &s.showsLocks, &o.database)
	if err != nil {
		return fmt.Errorf("frontier: read the server's version and role: %w", err)
	}
	return s.check()
}

// server is the part of the server's state that the proof needs.
type server struct {
	version                int // as in server_version_num
	recovering, showsLocks bool
}

func (s server) check() error {
	switch {
	case s.version < oldestServer*10_000:
		return setupError(errServerVersion, fmt.Sprintf("use PostgreSQL %d or later", oldestServer), "the server is PostgreSQL %d.%d", s.version/10_000, s.version%10_000)
	case s.recovering:
		return setupError(ErrInRecovery, "connect to the primary", "the locks on the log's sequence do not show on a replica")
	case !s.showsLocks:
		return setupError(ErrNoPrivilege, "GRANT SELECT ON pg_catalog.pg_locks to this role", "this role may not read pg_locks")
	}
	return nil
}

func checkOwnTable(ctx context.Context, q store.Querier, t ident.Table) error {
	var found, allowed bool
	err := q.QueryRowContext(ctx, `
SELECT oid IS NOT NULL, coalesce(has_any_column_privilege(oid, 'SELECT') AND has_any_column_privilege(oid, 'INSERT') AND has_any_column_privilege(oid, 'UPDATE'), false)
FROM (SELECT to_regclass($1::text)::oid AS oid) AS t`, t.SQL()).Scan(&found, &allowed)
	switch {
	case err != nil:
		return fmt.Errorf("frontier: find table %s: %w", t, err)
	case !found:
		return setupError(errTableNotFound, "apply the migrations (migrations.Apply or cmd/migrate-gen)", "there is no table %s", t)
	case !allowed:
		return setupError(ErrNoPrivilege, "GRANT SELECT, INSERT, UPDATE ON "+t.SQL()+" to this role", "this role may not read and write table %s", t)
	}
	return nil
}

// findColumn resolves the table and column named by the store.
func (o *origin) findColumn(ctx context.Context, q store.Querier, table, column string) error {
	var attribute sql.NullString
	var hidden, allowed bool
	err := q.QueryRowContext(ctx, texts["find_column"], table, column).Scan(&o.tableOID, &o.table, &hidden, &attribute, &allowed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return setupError(errTableNotFound, "create the table, or correct the name that the event store returns", "there is no table %s", table)
	case err != nil:
		return fmt.Errorf("frontier: find column %s of table %s: %w", column, table, err)
	case !attribute.Valid:
		return setupError(errColumnNotFound, "correct the name that the event store returns", "table %s has no column %s", o.table, column)
	case hidden:
		return rowSecurityError(o.table)
	case !allowed:
		return setupError(ErrNoPrivilege, "GRANT SELECT ON "+o.table+" to this role", "this role may not read table %s", o.table)
	}
	o.column = attribute.String
	return nil
}

func rowSecurityError(table string) error {
	return setupError(ErrRowSecurity, "use a role with BYPASSRLS, or disable row-level security on the table",
		"row-level security of table %s applies to this role, and rows that the role cannot see would count as void", table)
}

// findSequence finds the sequence that the column's default draws from. A sequence that the
// default refers to comes first. Otherwise the column owns the sequence: an identity's
// sequence comes before the sequence of a serial column.
func (o *origin) findSequence(ctx context.Context, q store.Querier) error {
	var drawn, owned sql.NullInt64
	var candidates int
	err := q.QueryRowContext(ctx, texts["find_sequence"], o.tableOID, o.column).Scan(&drawn, &candidates, &owned)
	switch {
	case err != nil:
		return fmt.Errorf("frontier: find the sequence of %s.%s: %w", o.table, o.column, err)
	case candidates > 1:
		return setupError(errSequenceUnknown, "let the default draw from one sequence", "the default of %s.%s draws from %d sequences", o.table, o.column, candidates)
	case drawn.Valid:
		o.sequenceOID = drawn.Int64
	case owned.Valid:
		o.sequenceOID = owned.Int64
	default:
		return setupError(errSequenceUnknown, "make the column serial or identity, or set its default to nextval('...')", "%s.%s has no default that draws from a sequence", o.table, o.column)
	}
	return o.readSequence(ctx, q)
}

func (o *origin) readSequence(ctx context.Context, q store.Querier) error {
	var s settings
	var readable bool
	err := q.QueryRowContext(ctx, texts["read_sequence"], o.sequenceOID).Scan(&o.sequence, &o.file, &readable, &s.cache, &s.increment, &s.cycle, &s.lowest)
	switch {
	case err != nil:
		return fmt.Errorf("frontier: read the settings of the sequence of %s.%s: %w", o.table, o.column, err)
	case !readable:
		return setupError(ErrNoPrivilege, "GRANT SELECT ON SEQUENCE "+o.sequence+" to this role", "this role may not read sequence %s", o.sequence)
	}
	return s.check(o.sequence)
}

// checkLowest returns an error if the log has an event below position 1. A checkpoint of 0
// means that no event was handled, so no consumer would read that event.
func (o *origin) checkLowest(ctx context.Context, q store.Querier) error {
	var lowest int64
	if err := q.QueryRowContext(ctx, `SELECT coalesce(min(`+o.column+`), 1) FROM `+o.table).Scan(&lowest); err != nil {
		return fmt.Errorf("frontier: read the lowest position of %s: %w", o.table, err)
	}
	if lowest < 1 {
		return setupError(errSequenceLow, "give the events below 1 positions from "+o.sequence+", or DELETE FROM "+o.table+" WHERE "+o.column+" < 1",
			"table %s has an event at position %d, and consumers begin at 1", o.table, lowest)
	}
	return nil
}

// settings are the settings of a sequence that the proof depends on.
type settings struct {
	cache, increment int64
	cycle            bool
	lowest           int64 // MINVALUE; last_value is never below it
}

func (s settings) check(sequence string) error {
	switch {
	case s.cache != 1:
		return setupError(errSequenceCache, "ALTER SEQUENCE "+sequence+" CACHE 1, then let the sessions that append reconnect",
			"sequence %s has cache %d, so that a session can use a position long after it drew it", sequence, s.cache)
	case s.increment != 1:
		return setupError(errSequenceStep, "ALTER SEQUENCE "+sequence+" INCREMENT 1", "sequence %s has increment %d", sequence, s.increment)
	case s.cycle:
		return setupError(errSequenceCycle, "ALTER SEQUENCE "+sequence+" NO CYCLE", "sequence %s would issue positions again", sequence)
	case s.lowest < 1:
		return setupError(errSequenceLow, "ALTER SEQUENCE "+sequence+" MINVALUE 1 START 1, with RESTART 1 if it has issued no position above 0",
			"sequence %s has MINVALUE %d, and consumers begin at 1", sequence, s.lowest)
	}
	return nil
}
