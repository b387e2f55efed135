package postgres_test

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// ReadAges skips gaps and other types, and returns ages that neither overflow nor fall below 0.
func TestReadAges(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload, created_at)
		SELECT p, type, p::text, 1, gen_random_uuid(), 'e', '', at FROM (VALUES
			(3, 'A', now() - interval '1 hour'), (900, 'B', now() - interval '1 minute'), (1000, 'A', now() + interval '1 day'),
			(1001, 'C', '-infinity'), (1002, 'D', '4000-01-01 BC')) AS e (p, type, at)`)
	places := []store.Place{
		{}, {After: 3}, {After: 900}, {After: 1000}, {After: 1001}, {After: 1002},
		{Types: []string{"B"}}, {After: 3, Types: []string{"D", "A"}}, {Types: []string{"none, or '\"{}"}}, {Types: []string{}},
	}
	want := []store.Waiting{
		{Position: 3, Age: time.Hour}, {Position: 900, Age: time.Minute}, {Position: 1000, Age: 0}, {Position: 1001, Age: 0}, {Position: 1002, Age: 876600 * time.Hour}, {},
		{Position: 900, Age: time.Minute}, {Position: 1000, Age: 0}, {}, {},
	}
	pools := map[string]*sql.DB{"lib/pq": d.OpenPQ(t), "pgx": d.DB}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pools["pgx, "+mode.String()] = d.OpenMode(t, mode)
	}
	for name, db := range pools {
		got, err := storepostgres.NewStore(nil).ReadAges(t.Context(), db, places)
		for i := range got {
			got[i].Age = got[i].Age.Truncate(time.Minute)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
		if none, err := storepostgres.NewStore(nil).ReadAges(t.Context(), db, nil); err != nil || len(none) > 0 {
			t.Errorf("%s: of no places: %v, %v", name, none, err)
		}
	}
}
