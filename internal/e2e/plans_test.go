package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// No statement goes on reading all of a table that has grown. The worker's sessions have made their
// plans while all tables were small, and the tables have not been analyzed since.
func TestPlansOfSmallTables(t *testing.T) {
	tier.Long(t, "TestOrderOverDeadLetters, and TestPlans of internal/pgdriver, in which a slow statement is planned anew")
	t.Parallel()
	d := newLog(t)
	d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database()); END $$`)
	grown := []string{"events", "consumer_dead_letters", "consumer_gap_skips"}
	for _, table := range grown {
		d.Exec(t, `ALTER TABLE `+table+` SET (autovacuum_enabled = off)`)
	}
	bad := func(_ context.Context, _ *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == "bad" {
			return errors.New("bad")
		}
		return nil
	}
	types := []string{"Order", "Invoice"}
	consumers := []consumer.Consumer{
		&ledger{name: "all", before: bad},
		&scopedLedger{ledger{name: "one", types: types[:1], before: bad}},
		&scopedLedger{ledger{name: "two", types: types, before: bad}},
	}
	db := (&pgtest.Database{URL: d.URL}).OpenMode(t, pgx.QueryExecModeCacheStatement)
	start(t, db, consumers, worker.WithFailurePolicy(worker.FailDeadLetter), worker.WithMaxConsecutiveFailures(1))

	handled := func(what string) {
		head := one[int64](t, d.DB, `SELECT COALESCE(max(global_position), 0) FROM events`)
		await(t, what, func() bool {
			return one[int64](t, d.DB, `SELECT count(*) FROM consumer_checkpoints WHERE last_position >= $1::bigint`, head) == int64(len(consumers))
		}, func() string {
			return fmt.Sprint(positionsBy(t, d.DB, `SELECT last_position FROM consumer_checkpoints`), " of ", head)
		})
	}
	everything := func() { // new events, void positions, dead letters and what follows them
		for i := range 5 {
			if err := beginAppend(t, db, "Order", "none", 1).Rollback(); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"bad", "good", fmt.Sprint("good", i)} {
				appendN(t, db, types[i%2], id, 1)
			}
			handled("a few events")
		}
	}
	everything()
	d.Exec(t, `VACUUM ANALYZE`) // of a page or two each
	everything()
	read := func(table string) int64 {
		return one[int64](t, d.DB, `SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = $1`, table)
	}
	before := map[string]int64{}
	for _, table := range grown {
		before[table] = read(table)
	}

	const many = 100_000
	d.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT CASE WHEN i % 2 = 0 THEN 'Order' ELSE 'Other' END, 'x' || i, 1, gen_random_uuid(), 'Happened', '{}' FROM generate_series(1, $1::int) AS i`, many)
	d.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		SELECT c, -i, 'Order', 'x' || i, gen_random_uuid(), 'Happened', 1 FROM generate_series(1, $1::int) AS i, unnest('{all,one}'::text[]) AS c`, many/2)
	d.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at, created_at, closed_at)
		SELECT c, gen_random_uuid(), -i, -i, 1, 'void', 1, 1, now(), now(), now() FROM generate_series(1, $1::int) AS i, unnest('{all,one}'::text[]) AS c`, many/2)
	handled("the burst")
	for range 4 {
		everything()
	}
	for _, table := range grown {
		limit := int64(50)
		if table == "consumer_dead_letters" {
			limit = 2000 // one execution for 500 events reads the table 500 times, with a wrong plan
		}
		if n := (read(table) - before[table]) / many; n > limit {
			t.Errorf("%s was read %d times from end to end", table, n)
		}
	}
}
