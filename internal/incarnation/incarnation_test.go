package incarnation_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var of = incarnation.Of(ident.Table{Name: "consumer_checkpoints_token"}, `"public"."events"`, `"public"."events_global_position_seq"`,
	`(SELECT oid FROM pg_database WHERE datname = current_database())`)

func current(t *testing.T, db *sql.DB) (name string) {
	t.Helper()
	// A pool may hold connections from before a restart.
	for tries := db.Stats().Idle; ; tries-- {
		err := db.QueryRowContext(t.Context(), `SELECT coalesce(`+of+`, '')`).Scan(&name)
		if err == nil {
			return name
		}
		if tries < 0 {
			t.Fatal(err)
		}
	}
}

func TestIncarnationChangesWhenPositionsRepeat(t *testing.T) {
	s := pgtest.OwnServer(t, nil)
	db, err := sql.Open("pgx", s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := migrations.Apply(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if name := current(t, db); name != "" {
		t.Errorf("without a token the name is %q", name)
	}
	exec(`INSERT INTO consumer_checkpoints_token (token, database) SELECT gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()`)
	before := current(t, db)
	if before == "" {
		t.Fatal("the incarnation has no name")
	}
	for what, do := range map[string]struct {
		do   func()
		same bool
	}{
		"the position moves":  {do: func() { exec(`SELECT nextval('events_global_position_seq')`) }, same: true},
		"VACUUM":              {do: func() { exec(`VACUUM events`) }, same: true},
		"another token":       {do: func() { exec(`UPDATE consumer_checkpoints_token SET token = gen_random_uuid()`) }},
		"the log begins at 1": {do: func() { exec(`TRUNCATE events RESTART IDENTITY`) }},
		"the server is restarted": {do: func() {
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		do.do()
		after := current(t, db)
		if (after == before) != do.same || after == "" {
			t.Errorf("%s: from %q to %q", what, before, after)
		}
		before = after
	}
	exec(`UPDATE consumer_checkpoints_token SET database = 1`)
	if name := current(t, db); name != "" {
		t.Errorf("with the token of another database the name is %q", name)
	}
}

// plainLog is a log without a Binder.
type plainLog struct{ store.Log }

type scopedLog struct {
	store.Log
	store.ScopedReader
}

type rangesLog struct {
	store.Log
	store.RangeReader
}

type fullLog struct {
	store.Log
	store.ScopedReader
	store.RangeReader
	store.SequenceNamer
}

// A log without a Binder is bound by a query after each read, and keeps its interfaces.
func TestUnboundLogs(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints_token (token, database) SELECT gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()
		ON CONFLICT ("only") DO NOTHING`)
	now := current(t, d.DB)
	s := storepostgres.NewStore(nil)
	for name, log := range map[string]store.Log{"plain": plainLog{s}, "scoped": scopedLog{s, s}, "ranges": rangesLog{s, s}, "full": fullLog{s, s, s, s}} {
		t.Run(name, func(t *testing.T) {
			conn, err := d.DB.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			bound, err := incarnation.Bind(t.Context(), conn, log, of)
			if err != nil {
				t.Fatal(err)
			}
			if n, named := bound.(store.SequenceNamer); named != (name == "full") {
				t.Errorf("the bound log names its sequence: %v", named)
			} else if named {
				if table, _ := n.PositionColumn(); table != "public.events" {
					t.Errorf("the bound log's table is %s", table)
				}
			}
			for _, c := range []struct {
				at   string
				want error
			}{{now, nil}, {"another", store.ErrIncarnation}} {
				for read, err := range reads(t.Context(), conn, bound.At(c.at), log) {
					if !errors.Is(err, c.want) {
						t.Errorf("%s at %q: %v, want %v", read, c.at, err, c.want)
					}
				}
			}
			// The name may lead to another table in this session.
			if _, err := conn.ExecContext(t.Context(), `CREATE TEMPORARY TABLE events (LIKE public.events)`); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = conn.ExecContext(context.Background(), `DROP TABLE pg_temp.events`) }()
			if _, err := bound.At(now).ReadEvents(t.Context(), conn, 0, 1); name == "full" && !errors.Is(err, store.ErrIncarnation) {
				t.Errorf("from a temporary table: %v", err)
			}
		})
	}
}

var errUnable = errors.New("the bound log has lost or gained an interface")

// reads calls every read that the log has.
func reads(ctx context.Context, q store.Querier, at, log store.Log) map[string]error {
	got := map[string]error{}
	_, got["ReadEvents"] = at.ReadEvents(ctx, q, 0, 1)
	_, got["GetLatestGlobalPosition"] = at.GetLatestGlobalPosition(ctx, q)
	_, able := log.(store.ScopedReader)
	if scoped, ok := at.(store.ScopedReader); ok != able {
		got["scoped"] = errUnable
	} else if ok {
		_, got["ReadScoped"] = scoped.ReadScoped(ctx, q, store.ScopedRange{UpTo: 1, Types: []string{"A"}, Limit: 1})
		_, got["CountMissing"] = scoped.CountMissing(ctx, q, 0, 1)
	}
	_, able = log.(store.RangeReader)
	if ranges, ok := at.(store.RangeReader); ok != able {
		got["ranges"] = errUnable
	} else if ok {
		_, got["ReadRanges"] = ranges.ReadRanges(ctx, q, []store.Range{{First: 1, Last: 1}}, 1)
	}
	return got
}

// shouting changes the events of its store, and inherits the rest.
type shouting struct{ *storepostgres.Store }

func (s shouting) ReadEvents(ctx context.Context, q store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	events, err := s.Store.ReadEvents(ctx, q, after, limit)
	for i := range events {
		events[i].EventType += "!"
	}
	return events, err
}

func TestLogThatEmbedsAStoreIsNotBypassed(t *testing.T) {
	d := pgtest.New(t)
	d.Exec(t, `INSERT INTO consumer_checkpoints_token (token, database) SELECT gen_random_uuid(), oid FROM pg_database WHERE datname = current_database()
		ON CONFLICT ("only") DO NOTHING`)
	d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type) VALUES ('A', '1', 1, gen_random_uuid(), 'e')`)
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	bound, err := incarnation.Bind(t.Context(), conn, shouting{storepostgres.NewStore(nil)}, of)
	if err != nil {
		t.Fatal(err)
	}
	events, err := bound.At(current(t, d.DB)).ReadEvents(t.Context(), conn, 0, 10)
	if err != nil || len(events) != 1 || events[0].EventType != "e!" {
		t.Errorf("the bound log returned %+v; %v", events, err)
	}
}
