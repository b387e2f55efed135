package postgres_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// Every read of a bound log succeeds in its incarnation, and fails in any other, even without
// an event.
func TestEveryBoundReadProvesItsIncarnation(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `CREATE TABLE server (name TEXT)`)
	d.Exec(t, `INSERT INTO server VALUES ('this')`)
	d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT 'A', i::text, 1, gen_random_uuid(), 'e', '' FROM generate_series(1, 5) AS i`)
	pools := map[string]*sql.DB{"lib/pq": d.OpenPQ(t), "pgx": d.DB}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pools["pgx, "+mode.String()] = d.OpenMode(t, mode)
	}
	for name, db := range pools {
		t.Run(name, func(t *testing.T) {
			bound, err := storepostgres.NewStore(nil).Bind(t.Context(), db, `(SELECT name FROM public.server)`)
			if err != nil {
				t.Fatal(err)
			}
			for read, do := range boundReads(t, db) {
				if n, err := do(bound.At("this")); err != nil || n == 0 {
					t.Errorf("%s: found %d, %v", read, n, err)
				}
				if _, err := do(bound.At("another")); !errors.Is(err, store.ErrIncarnation) {
					t.Errorf("%s in another incarnation: %v", read, err)
				}
				if _, err := do(bound); err != nil {
					t.Errorf("%s, unproven: %v", read, err)
				}
			}
			if _, err := bound.At("another").ReadEvents(t.Context(), db, 100, 1); !errors.Is(err, store.ErrIncarnation) {
				t.Errorf("no events in another incarnation: %v", err)
			}
			if events, err := bound.At("this").ReadEvents(t.Context(), db, 100, 1); err != nil || len(events) != 0 {
				t.Errorf("no events: %v, %v", events, err)
			}
		})
	}
}

// boundReads returns all reads of a log. Each read returns how many events it found.
func boundReads(t *testing.T, db *sql.DB) map[string]func(store.Log) (int, error) {
	scoped := func(types ...string) func(store.Log) (int, error) {
		return func(l store.Log) (int, error) {
			p, err := l.(store.ScopedReader).ReadScoped(t.Context(), db, store.ScopedRange{UpTo: 5, Types: types, Limit: 10})
			return len(p.Events), err
		}
	}
	return map[string]func(store.Log) (int, error){
		"ReadEvents": func(l store.Log) (int, error) {
			events, err := l.ReadEvents(t.Context(), db, 0, 10)
			return len(events), err
		},
		"GetLatestGlobalPosition": func(l store.Log) (int, error) {
			position, err := l.GetLatestGlobalPosition(t.Context(), db)
			return int(position), err
		},
		"ReadScoped, one type":  scoped("A"),
		"ReadScoped, two types": scoped("A", "B"),
		"CountMissing": func(l store.Log) (int, error) {
			m, err := l.(store.ScopedReader).CountMissing(t.Context(), db, 0, 7)
			return int(m.Count), err
		},
		"ReadAges": func(l store.Log) (int, error) {
			ages, err := l.(store.AgeReader).ReadAges(t.Context(), db, []store.Place{{After: 2}, {Types: []string{"B"}}})
			return len(ages), err
		},
		"ReadRanges": func(l store.Log) (int, error) {
			events, err := l.(store.RangeReader).ReadRanges(t.Context(), db, []store.Range{{First: 2, Last: 3}}, 10)
			return len(events), err
		},
	}
}

func TestBindRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, says string }{
		"no table":            {`DROP TABLE events`, "there is no table events: create it with migrations.Apply"},
		"a temporary table":   {`CREATE TEMPORARY TABLE events (LIKE public.events)`, "is no table of the log but a temporary one"},
		"other columns":       {`ALTER TABLE events DROP COLUMN payload, DROP COLUMN trace_id`, "lacks the columns payload, trace_id of an event"},
		"tables that are fit": {`SELECT 1`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.New(t)
			conn, err := d.DB.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.ExecContext(t.Context(), c.before); err != nil {
				t.Fatal(err)
			}
			bound, err := storepostgres.NewStore(nil).Bind(t.Context(), conn, `'x'`)
			switch {
			case c.says == "" && err == nil:
				if table, column := bound.(store.SequenceNamer).PositionColumn(); table != `"public"."events"` || column != "global_position" {
					t.Errorf("the position is %s of %s", column, table)
				}
			case err == nil || c.says == "" || !strings.Contains(err.Error(), c.says):
				t.Errorf("got %v, want an error that says: %s", err, c.says)
			}
		})
	}
}

// Bind refuses a nondeterministic collation, under which types are equal that a consumer
// distinguishes. The ALTER in the error changes the collation.
func TestBindRefusesNondeterministicCollations(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	d.Exec(t, `CREATE COLLATION exact (provider = icu, locale = 'und')`)
	bind := func() error {
		_, err := storepostgres.NewStore(nil).Bind(t.Context(), d.DB, `'x'`)
		return err
	}
	d.Exec(t, `ALTER TABLE events ALTER COLUMN aggregate_id TYPE text COLLATE caseless, ALTER COLUMN aggregate_type TYPE varchar(100) COLLATE caseless`)
	err := bind()
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("Bind returns %v", err)
	}
	_, alter, _ := strings.Cut(err.Error(), "ALTER TABLE ")
	d.Exec(t, `ALTER TABLE `+alter)
	if err := bind(); err != nil {
		t.Errorf("after ALTER TABLE %s: %v", alter, err)
	}
	d.Exec(t, `ALTER TABLE events ALTER COLUMN aggregate_type TYPE text COLLATE exact`)
	if err := bind(); err != nil {
		t.Errorf("under a deterministic collation: %v", err)
	}
}
