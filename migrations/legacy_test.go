package migrations_test

import (
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/legacy"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

// legacyRows are the rows that processes of a legacy library leave behind. These are consumers
// without a worker, consumers of workers that are gone, a lease and a skipped gap.
const legacyRows = `
INSERT INTO worker_nodes (worker_id) VALUES ('11111111-1111-1111-1111-111111111111');
INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('a', NULL), ('b', '11111111-1111-1111-1111-111111111111');
INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('a', 7), ('b', 42);
INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, skip_to_position, highest_visible_position, first_seen_at)
VALUES ('a', '11111111-1111-1111-1111-111111111111', 3, 5, 13, now());
INSERT INTO worker_leader_election (lease_key, leader_id, expires_at) VALUES ('leader', '11111111-1111-1111-1111-111111111111', now() + interval '1 minute');
INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) VALUES ('a', '1', 1, '22222222-2222-2222-2222-222222222222', 't', '');
`

// olderLease is the lease's table before it had a foreign key.
const olderLease = `
ALTER TABLE worker_leader_election DROP CONSTRAINT worker_leader_election_leader_id_fkey;
ALTER TABLE worker_leader_election ALTER COLUMN leader_id SET NOT NULL;`

// runStatements executes the generated texts like tools that end a statement at a semicolon at
// the end of a line.
func runStatements(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, f := range []func(*migrations.Config) (string, error){migrations.StoreSQL, migrations.SQL} {
		text, err := f(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range strings.SplitAfter(text, ";\n") {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%v in\n%s", err, statement)
			}
		}
	}
}

func TestLegacyTablesAreUpgradedInPlace(t *testing.T) {
	t.Parallel()
	for name, upgrade := range map[string]func(*testing.T, *pgtest.Database){
		"Apply":                  func(t *testing.T, d *pgtest.Database) { apply(t, d.DB, nil) },
		"SQL":                    func(t *testing.T, d *pgtest.Database) { runFiles(t, d.OpenPQ(t), nil) },
		"statement-by-statement": func(t *testing.T, d *pgtest.Database) { runStatements(t, d.DB) },
		"older-lease":            func(t *testing.T, d *pgtest.Database) { d.Exec(t, olderLease); apply(t, d.DB, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			d := pgtest.Empty(t)
			d.Exec(t, legacy.StoreTables+legacy.WorkerTables+legacyRows)
			upgrade(t, d)
			apply(t, d.DB, nil)
			if err := migrations.Check(t.Context(), d.DB, nil); err != nil {
				t.Fatal(err)
			}
			equal(t, "rows", list(t, d.DB, `
SELECT 'node ' || protocol || (consumers IS NULL)::text FROM worker_nodes
UNION ALL SELECT 'assignment ' || consumer_name || coalesce(left(worker_id::text, 1), '-') FROM consumer_assignments
UNION ALL SELECT 'checkpoint ' || consumer_name || last_position || ' ' || revision FROM consumer_checkpoints
UNION ALL SELECT 'skip ' || gap_position || '-' || skip_to_position || ' ' || state || (closed_at IS NULL)::text FROM consumer_gap_skips
UNION ALL SELECT 'lease ' || lease_key || coalesce(name, '') FROM worker_leader_election
UNION ALL SELECT 'event ' || global_position FROM events`),
				[]string{"node 1true", "assignment a-", "assignment b1", "checkpoint a7 0", "checkpoint b42 0", "skip 3-5 voidfalse", "lease leader", "event 1"})
			equal(t, "foreign keys", list(t, d.DB, `SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid <> 'worker_leader_election'::regclass`), nil)
			equal(t, "indexes beside equal ones", list(t, d.DB, `
SELECT indexname FROM pg_indexes WHERE indexname IN ('events_aggregate_type_global_position_idx', 'worker_nodes_heartbeat_at_idx', 'consumer_assignments_worker_id_idx')`), nil)
		})
	}
}

// Apply does not add a missing column of every version. It changes nothing, and names all
// missing columns at once.
func TestApplyRefusesTablesOfAnotherShape(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, strings.ReplaceAll(legacy.StoreTables, "aggregate_", "stream_"))
	d.Exec(t, `CREATE TABLE worker_nodes (id int); CREATE VIEW consumer_gap_skips AS SELECT 1`)
	err := migrations.Apply(t.Context(), d.DB, nil)
	for _, want := range []string{
		`"events" has no column aggregate_type, aggregate_id, aggregate_version:`,
		`"worker_nodes" has no column worker_id, heartbeat_at, created_at, updated_at;`,
		`"consumer_gap_skips" is no table;`, "choose other table names",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	d = pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE worker_leader_election (lease_key text PRIMARY KEY, cluster text NOT NULL)`)
	want := `"worker_leader_election" has a column that the worker does not fill and that has no default: cluster: choose other table names`
	if err := migrations.Apply(t.Context(), d.DB, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say %s", err, want)
	}
	equal(t, "tables", list(t, d.DB, `SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`), []string{"worker_leader_election"})
}

func TestCheckNamesEveryMissingColumn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `
ALTER TABLE worker_nodes DROP COLUMN protocol, DROP COLUMN consumers;
ALTER TABLE consumer_checkpoints DROP COLUMN revision, ADD COLUMN tenant text NOT NULL, ADD COLUMN shard int NOT NULL DEFAULT 0;
ALTER TABLE consumer_gap_skips DROP COLUMN state;
ALTER TABLE worker_leader_election DROP CONSTRAINT worker_leader_election_pkey;
ALTER TABLE consumer_dead_letters DROP CONSTRAINT consumer_dead_letters_pkey;
ALTER TABLE consumer_checkpoints_token DROP COLUMN "only";
DROP TABLE consumer_operations`)
	want := `no table "consumer_operations"; ` +
		`"worker_nodes" has no column consumers, protocol; ` +
		`"consumer_checkpoints" has no column revision; ` +
		`"consumer_checkpoints" has a column that the worker does not fill and that has no default: tenant; ` +
		`"consumer_gap_skips" has no column state; ` +
		`"consumer_dead_letters" has no unique index on (consumer_name, global_position), named "consumer_dead_letters_pkey"; ` +
		`"worker_leader_election" has no unique index on (name), named "worker_leader_election_name_idx"; ` +
		`"consumer_checkpoints_token" has no column only: call migrations.Apply`
	if err := migrations.Check(t.Context(), d.DB, nil); !errors.Is(err, migrations.ErrNotApplied) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v\ndoes not say\n%s", err, want)
	}
}

// An upgrade and running workers may take their locks in different orders.
func TestApplyRetriesAfterDeadlock(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, legacy.StoreTables+legacy.WorkerTables)
	d.Exec(t, `ALTER TABLE events ADD COLUMN tenant text NOT NULL`) // no fault in a table of events
	conn, err := d.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exec := func(query string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Errorf("%v in %s", err, query)
		}
	}
	exec(`SET deadlock_timeout = '1min'`) // the other session is to be the victim
	exec(`BEGIN`)
	exec(`LOCK TABLE consumer_checkpoints IN ROW EXCLUSIVE MODE`)
	applied := make(chan error, 1)
	db := with(t, d, "deadlock_timeout", "2000") // milliseconds
	go func() { applied <- migrations.Apply(t.Context(), db, nil) }()
	for deadline := time.Now().Add(pgtest.Patience); len(list(t, d.DB, `SELECT 'waits' FROM pg_locks WHERE `+pgtest.Here+` AND NOT granted AND relation = 'consumer_checkpoints'::regclass`)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain for Apply to wait for the table")
		}
	}
	exec(`LOCK TABLE consumer_assignments IN ROW EXCLUSIVE MODE`)
	exec(`COMMIT`)
	if err := <-applied; err != nil {
		t.Error(err)
	}
	if err := migrations.Check(t.Context(), d.DB, nil); err != nil {
		t.Error(err)
	}
}

// The query in docs/migrating.md finds the events that a legacy library passed before they were
// committed, and no void positions.
func TestMigratingQueryFindsLostEvents(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```sql\n")
	query, _, found := strings.Cut(rest, "```")
	if !found || !strings.Contains(query, "gap_end IS NULL") {
		t.Fatal("docs/migrating.md: the query is not where it was")
	}
	d := pgtest.Empty(t)
	d.Exec(t, legacy.StoreTables+legacy.WorkerTables+legacyRows)
	d.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, skip_to_position, highest_visible_position, first_seen_at)
SELECT 'b', '11111111-1111-1111-1111-111111111111', global_position, 42, 42, now() FROM events`)
	apply(t, d.DB, nil)
	var consumer, aggregate, id, event string
	var position int64
	if err := d.DB.QueryRow(`SELECT * FROM (`+strings.TrimSuffix(strings.TrimSpace(query), ";")+`) AS q`).Scan(&consumer, &position, &aggregate, &id, &event); err != nil {
		t.Fatal(err)
	}
	if consumer != "b" || position != 1 || aggregate != "a" || id != "1" || event != "t" {
		t.Errorf("found %s, %d, %s, %s, %s", consumer, position, aggregate, id, event)
	}
}
