package frontier

import (
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgtest"
)

func TestPreflightPasses(t *testing.T) {
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
			if err := New(testConfig(t, db)).Preflight(t.Context()); err != nil {
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
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE SCHEMA "My Log"`)
	d.Exec(t, `CREATE TABLE "My Log"."The ""Events""" ("Position" BIGSERIAL PRIMARY KEY)`)
	d.Exec(t, `CREATE UNLOGGED TABLE consumer_checkpoints_token ("only" BOOLEAN PRIMARY KEY DEFAULT true, token UUID, database OID)`)
	d.Exec(t, `CREATE TABLE consumer_checkpoints_settled (log BIGINT PRIMARY KEY, settled BIGINT, updated_at TIMESTAMPTZ)`)
	cfg := testConfig(t, d.DB)
	cfg.Log = namedLog{table: `"My Log"."The ""Events"""`, column: `"Position"`}
	f, _ := run(t, cfg)
	d.Exec(t, `INSERT INTO "My Log"."The ""Events""" DEFAULT VALUES`)
	awaitSettled(t, f, 1)
}

func TestPreflightRefuses(t *testing.T) {
	const role = `CREATE ROLE %[1]s; GRANT SELECT ON events, events_global_position_seq TO %[1]s;`
	for _, c := range []struct {
		name  string
		setup string
		log   namedLog
		want  error
		says  []string
	}{
		{"no token table", `DROP TABLE consumer_checkpoints_token`, events(), ErrTableNotFound, []string{"consumer_checkpoints_token", "migrations"}},
		{"no settled table", `DROP TABLE consumer_checkpoints_settled`, events(), ErrTableNotFound, []string{"consumer_checkpoints_settled", "migrations"}},
		{"no events table", ``, namedLog{table: "nothing", column: "global_position"}, ErrTableNotFound, []string{"nothing"}},
		{"no column", ``, namedLog{table: "events", column: "nothing"}, ErrColumnNotFound, []string{"events", "nothing"}},
		{"no sequence", `ALTER TABLE events ALTER global_position DROP DEFAULT; DROP SEQUENCE events_global_position_seq`, events(), ErrSequenceUnknown, []string{"events", "global_position", "identity"}},
		{"two sequences", `CREATE SEQUENCE other; ALTER TABLE events ALTER global_position SET DEFAULT nextval('other') + nextval('events_global_position_seq')`, events(), ErrSequenceUnknown, []string{"2 sequences"}},
		{"cache", `ALTER SEQUENCE events_global_position_seq CACHE 10`, events(), ErrSequenceCache, []string{"cache 10", "ALTER SEQUENCE public.events_global_position_seq CACHE 1"}},
		{"increment", `ALTER SEQUENCE events_global_position_seq INCREMENT 2`, events(), ErrSequenceStep, []string{"increment 2", "INCREMENT 1"}},
		{"cycle", `ALTER SEQUENCE events_global_position_seq CYCLE`, events(), ErrSequenceCycle, []string{"NO CYCLE"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := pgtest.New(t)
			exec(t, d.OpenPQ(t), c.setup)
			cfg := testConfig(t, d.DB)
			cfg.Log = c.log
			refused(t, cfg, c.want, c.says...)
		})
	}
	_ = role
}

func refused(t *testing.T, cfg Config, want error, says ...string) {
	t.Helper()
	err := New(cfg).Preflight(t.Context())
	var setup *SetupError
	if !errors.Is(err, want) || !errors.As(err, &setup) || setup.Remedy == "" {
		t.Fatalf("got %v, want %v", err, want)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	if _, err := New(cfg).Open(t.Context()); !errors.Is(err, want) {
		t.Errorf("a session opens: %v", err)
	}
}
