package frontier

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestPreflightPasses(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]string{
		"serial":   ``,
		"identity": `ALTER TABLE events ALTER global_position DROP DEFAULT; DROP SEQUENCE events_global_position_seq; ALTER TABLE events ALTER global_position ADD GENERATED ALWAYS AS IDENTITY`,
		"default":  `CREATE SEQUENCE "Own" ; ALTER TABLE events ALTER global_position SET DEFAULT nextval('"Own"')`,
		"dynamic":  `ALTER TABLE events ALTER global_position SET DEFAULT nextval('events_global_position_seq'::text)`,
		"moved":    `CREATE SCHEMA "Else"; ALTER TABLE events SET SCHEMA "Else"; ALTER DATABASE ` + "%" + ` SET search_path = public, "Else"`,
	} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.New(t)
			var database string
			if err := d.DB.QueryRowContext(t.Context(), `SELECT current_database()`).Scan(&database); err != nil {
				t.Fatal(err)
			}
			exec(t, d.OpenPQ(t), strings.ReplaceAll(setup, "%", ident.Quote(database)))
			db := d.OpenPQ(t)
			if _, err := testConfig(t, db).Preflight(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			f, _ := run(t, testConfig(t, db))
			rollBackEvent(t, db)
			appendEvent(t, db)
			awaitSettled(t, f, 2)
		})
	}
}

func TestPreflightQuotedNames(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE SCHEMA "My Log"`)
	d.Exec(t, `CREATE TABLE "My Log"."The ""Events""" ("Position" BIGSERIAL PRIMARY KEY)`)
	d.Exec(t, `CREATE UNLOGGED TABLE consumer_checkpoints_token ("only" BOOLEAN PRIMARY KEY DEFAULT true, token UUID, database OID)`)
	d.Exec(t, `CREATE TABLE consumer_checkpoints_settled (log BIGINT PRIMARY KEY, settled BIGINT, updated_at TIMESTAMPTZ)`)
	d.Exec(t, `CREATE TABLE consumer_checkpoints_changes ("only" BOOLEAN PRIMARY KEY DEFAULT true, count BIGINT)`)
	cfg := testConfig(t, d.DB)
	cfg.Log = namedLog{table: `"My Log"."The ""Events"""`, column: `"Position"`}
	f, _ := run(t, cfg)
	d.Exec(t, `INSERT INTO "My Log"."The ""Events""" DEFAULT VALUES`)
	awaitSettled(t, f, 1)
}

func TestPreflightRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		setup string
		log   namedLog
		want  error
		says  []string
	}{
		{"no token table", `DROP TABLE consumer_checkpoints_token`, events(), errTableNotFound, []string{"consumer_checkpoints_token", "migrations"}},
		{"no settled table", `DROP TABLE consumer_checkpoints_settled`, events(), errTableNotFound, []string{"consumer_checkpoints_settled", "migrations"}},
		{"no changes table", `DROP TABLE consumer_checkpoints_changes`, events(), errTableNotFound, []string{"consumer_checkpoints_changes", "migrations"}},
		{"no events table", ``, namedLog{table: "nothing", column: "global_position"}, errTableNotFound, []string{"nothing"}},
		{"no column", ``, namedLog{table: "events", column: "nothing"}, errColumnNotFound, []string{"events", "nothing"}},
		{"no sequence", `ALTER TABLE events ALTER global_position DROP DEFAULT; DROP SEQUENCE events_global_position_seq`, events(), errSequenceUnknown, []string{"events", "global_position", "identity"}},
		{"two sequences", `CREATE SEQUENCE other; ALTER TABLE events ALTER global_position SET DEFAULT nextval('other') + nextval('events_global_position_seq')`, events(), errSequenceUnknown, []string{"2 sequences"}},
		{"cache", `ALTER SEQUENCE events_global_position_seq CACHE 10`, events(), errSequenceCache, []string{"cache 10", "ALTER SEQUENCE public.events_global_position_seq CACHE 1"}},
		{"increment", `ALTER SEQUENCE events_global_position_seq INCREMENT 2`, events(), errSequenceStep, []string{"increment 2", "INCREMENT 1"}},
		{"cycle", `ALTER SEQUENCE events_global_position_seq CYCLE`, events(), errSequenceCycle, []string{"NO CYCLE"}},
		{"minimum", `ALTER SEQUENCE events_global_position_seq MINVALUE 0`, events(), errSequenceLow, []string{"MINVALUE 0", "ALTER SEQUENCE public.events_global_position_seq MINVALUE 1 START 1"}},
		{"a start below zero", `ALTER SEQUENCE events_global_position_seq MINVALUE -5 START -5 RESTART`, events(), errSequenceLow, []string{"MINVALUE -5", "RESTART 1"}},
		{"a low identity next to a serial's sequence", `ALTER TABLE events ALTER global_position DROP DEFAULT; ALTER TABLE events ALTER global_position ADD GENERATED ALWAYS AS IDENTITY (MINVALUE 0 START 0)`, events(), errSequenceLow, []string{"MINVALUE 0"}},
		{"a low event", `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) VALUES (-7, 't', 'a', 1, gen_random_uuid(), 'e', ''), (5, 't', 'a', 2, gen_random_uuid(), 'e', '')`,
			events(), errSequenceLow, []string{"public.events", "position -7", "DELETE FROM public.events WHERE global_position < 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := pgtest.New(t)
			exec(t, d.OpenPQ(t), c.setup)
			cfg := testConfig(t, d.DB)
			cfg.Log = c.log
			refused(t, cfg, c.want, c.says...)
		})
	}
}

// poolOf opens a pool whose sessions act as a role with the least grants. setup then changes
// the grants. setup names the role %role.
func poolOf(t *testing.T, d *pgtest.Database, setup string) *sql.DB {
	t.Helper()
	role := "frontier_" + strings.ToLower(rand.Text())
	all := `CREATE ROLE %role;
GRANT SELECT ON events, events_global_position_seq TO %role;
GRANT SELECT, INSERT, UPDATE ON consumer_checkpoints_token, consumer_checkpoints_settled, consumer_checkpoints_changes TO %role;` + setup
	exec(t, d.OpenPQ(t), strings.ReplaceAll(all, "%role", role))
	t.Cleanup(func() { d.Exec(t, `DROP OWNED BY `+role); d.Exec(t, `DROP ROLE `+role) })
	cfg, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["role"] = role
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

const hideRows = `ALTER TABLE events ENABLE ROW LEVEL SECURITY;`

func TestPreflightPrivileges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, setup string
		want        error
		says        []string
	}{
		{"no token", `REVOKE INSERT ON consumer_checkpoints_token FROM %role`, ErrNoPrivilege, []string{"GRANT", "consumer_checkpoints_token"}},
		{"no settled", `REVOKE UPDATE ON consumer_checkpoints_settled FROM %role`, ErrNoPrivilege, []string{"GRANT", "consumer_checkpoints_settled"}},
		{"no events", `REVOKE SELECT ON events FROM %role`, ErrNoPrivilege, []string{"GRANT SELECT ON public.events"}},
		{"no sequence", `REVOKE SELECT ON events_global_position_seq FROM %role`, ErrNoPrivilege, []string{"GRANT SELECT ON SEQUENCE public.events_global_position_seq"}},
		{"hidden rows", hideRows, ErrRowSecurity, []string{"public.events", "BYPASSRLS"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := pgtest.New(t)
			refused(t, testConfig(t, poolOf(t, d, c.setup)), c.want, c.says...)
		})
	}
}

// The least privileges are enough. Details that they hide delay nothing.
func TestLeastPrivileges(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	cfg := testConfig(t, poolOf(t, d, hideRows+`CREATE POLICY all_rows ON events USING (true); ALTER ROLE %role BYPASSRLS`))
	f, _ := run(t, cfg)
	tx := begin(t, d.DB)
	appendEvent(t, tx)
	appendEvent(t, d.DB)
	if b := awaitBlocked(t, f); b[0].PID == 0 || b[0].State != "" || b[0].Age != 0 {
		t.Fatalf("want a holder whose details are hidden: %+v", b)
	}
	commit(t, tx)
	awaitSettled(t, f, 2)
}

func TestServerCheck(t *testing.T) {
	good := server{version: 130000, showsLocks: true}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[error]func(*server){
		errServerVersion: func(s *server) { s.version = 120022 },
		ErrInRecovery:    func(s *server) { s.recovering = true },
		ErrNoPrivilege:   func(s *server) { s.showsLocks = false },
	} {
		s := good
		change(&s)
		if err := s.check(); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", s, err, want)
		}
	}
	if err := (server{version: 120022}).check(); !strings.Contains(err.Error(), "12.22") {
		t.Errorf("%v does not name the version", err)
	}
}

// An error of Preflight may also arise while the frontier runs. The frontier then waits, and
// continues after the repair.
func TestPreflightErrorWhileRunning(t *testing.T) {
	t.Parallel()
	for want, clause := range map[error][2]string{
		errSequenceCache: {"CACHE 5", "CACHE 1"},
		errSequenceStep:  {"INCREMENT 3", "INCREMENT 1"},
		errSequenceCycle: {"CYCLE", "NO CYCLE"},
	} {
		t.Run(clause[0], func(t *testing.T) {
			d := pgtest.New(t)
			s := open(t, testConfig(t, d.DB))
			s.start()
			const alter = `ALTER SEQUENCE events_global_position_seq `
			d.Exec(t, alter+clause[0])
			rollBackEvent(t, d.DB)
			position := appendEvent(t, d.DB)
			// ALTER SEQUENCE changes the sequence's file, so every statement detects it.
			if err := s.s.step(t.Context()); !errors.Is(err, errLogReplaced) {
				t.Fatalf("the tail returned %v, want %v", err, errLogReplaced)
			}
			refused(t, testConfig(t, d.DB), want)
			f, _ := run(t, testConfig(t, d.DB))
			d.Exec(t, alter+clause[1])
			awaitSettled(t, f, position)
		})
	}
}

// The scan checks the sequence's settings, however they were changed.
func TestScanChecksTheSettings(t *testing.T) {
	t.Parallel()
	for want, change := range map[error]string{
		errSequenceCache: `seqcache = 5`, errSequenceStep: `seqincrement = 3`, errSequenceCycle: `seqcycle = true`,
		errSequenceLow: `seqmin = 0`,
	} {
		t.Run(change, func(t *testing.T) {
			d := pgtest.New(t)
			s := open(t, testConfig(t, d.DB))
			s.start()
			rollBackEvent(t, d.DB)
			appendEvent(t, d.DB)
			s.step(readTail)
			d.Exec(t, `UPDATE pg_sequence SET `+change)
			if err := s.s.step(t.Context()); !errors.Is(err, want) {
				t.Fatalf("the scan returned %v, want %v", err, want)
			}
			s.published(0, 0)
		})
	}
}

func TestHiddenRowsWhileRunning(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, poolOf(t, d, ``)))
	s.start()
	rollBackEvent(t, d.DB)
	appendEvent(t, d.DB)
	s.step(readTail)
	d.Exec(t, hideRows)
	if err := s.s.step(t.Context()); !errors.Is(err, ErrRowSecurity) {
		t.Fatalf("the scan returned %v, want %v", err, ErrRowSecurity)
	}
}

// Explicit ids or an unfinished restore leave rows above the sequence. The sequence will still
// issue the positions below these rows.
func TestRowsAboveTheSequence(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	s := open(t, testConfig(t, d.DB))
	s.start()
	d.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		VALUES (100, 't', 'explicit', 1, gen_random_uuid(), 'e', '')`)
	err := s.s.step(t.Context())
	if !errors.Is(err, errSequenceBehind) {
		t.Fatalf("the tail returned %v, want %v", err, errSequenceBehind)
	}
	_, mend, _ := strings.Cut(err.Error(), "; ")
	d.Exec(t, mend)
	f, _ := run(t, testConfig(t, d.DB))
	awaitSettled(t, f, 100)
}

func refused(t *testing.T, cfg Config, want error, says ...string) {
	t.Helper()
	_, err := cfg.Preflight(t.Context(), cfg.DB)
	var setup *SetupError
	if !errors.Is(err, want) || !errors.As(err, &setup) || setup.Remedy == "" {
		t.Fatalf("got %v, want %v", err, want)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	if _, err := New(cfg).open(t.Context()); !errors.Is(err, want) {
		t.Errorf("a session opens: %v", err)
	}
}
