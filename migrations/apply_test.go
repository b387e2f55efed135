package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/migrations"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.MultiWriter(os.Stderr, &logged), nil)))
	pgtest.Main(m)
}

// logged collects the log of all tests.
var logged pgtest.Lines

var custom = migrations.Config{
	WorkerNodesTable:         "infra.nodes",
	ConsumerAssignmentsTable: "infra.Assignments",
	ConsumerCheckpointsTable: "progress.checkpoints",
	ConsumerGapSkipsTable:    "audit.select",
	LeaderElectionTable:      "infra.leader_" + strings.Repeat("x", 56),
	EventsTable:              "log." + strings.Repeat("e", 63),
	AggregateHeadsTable:      "log.heads",
}

func apply(t *testing.T, db *sql.DB, c *migrations.Config) {
	t.Helper()
	if err := migrations.Apply(t.Context(), db, c); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	if err := migrations.Check(t.Context(), db, c); err != nil {
		t.Fatalf("Check after Apply: %v", err)
	}
}

func TestApplyTwice(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	apply(t, d.DB, nil)
	complete(t, d.DB)
	apply(t, d.DB, &migrations.Config{})
	complete(t, d.DB)
}

func TestApplyWithEveryDriverAndMode(t *testing.T) {
	t.Parallel()
	open := map[string]func(*pgtest.Database, *testing.T) *sql.DB{
		"lib/pq": func(d *pgtest.Database, t *testing.T) *sql.DB { return d.OpenPQ(t) },
	}
	for _, mode := range pgtest.Modes() {
		open[mode.String()] = func(d *pgtest.Database, t *testing.T) *sql.DB { return d.OpenMode(t, mode) }
	}
	for name, open := range open {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			d := pgtest.Empty(t)
			db := open(d, t)
			db.SetMaxOpenConns(1) // Apply needs no second one
			if err := migrations.Check(t.Context(), db, &custom); !errors.Is(err, migrations.ErrNotApplied) {
				t.Fatalf("Check of an empty database: %v", err)
			}
			apply(t, db, &custom)
			apply(t, db, &custom)
			apply(t, db, nil)
			complete(t, d.DB)
		})
	}
}

// Apply succeeds in processes that start at the same time.
func TestConcurrentApply(t *testing.T) {
	t.Parallel()
	for _, c := range []*migrations.Config{nil, &custom} {
		d := pgtest.Empty(t)
		// With REPEATABLE READ, Apply would read the version from before its wait.
		d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$`)
		start := make(chan struct{})
		errs := make([]error, 16)
		var all sync.WaitGroup
		for i := range errs {
			db := d.OpenMode(t, pgx.QueryExecModeExec)
			if err := db.PingContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				<-start
				errs[i] = migrations.Apply(t.Context(), db, c)
			})
		}
		close(start)
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if err := migrations.Check(t.Context(), d.DB, c); err != nil {
			t.Fatal(err)
		}
	}
}

// Apply waits while the database is away, and logs the wait.
func TestApplyWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	var name string
	if err := d.DB.QueryRow(`SELECT current_database()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	db, back := d.OpenAway(t)
	ended, gaveUp := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- migrations.Apply(t.Context(), db, nil) }()
	go func() { gaveUp <- migrations.ApplyJobs(ctx, db, nil) }()
	for {
		if text := logged.String(); strings.Count(text, "migrations wait for the database") > 1 && strings.Count(text, name) > 1 {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("Apply did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-gaveUp; err == nil {
		t.Error("ApplyJobs returned nil, though its context ended before the database was there")
	}
	back()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	complete(t, d.DB)
}

// older are the documented tables of earlier versions.
const older = `
CREATE TABLE worker_nodes (worker_id UUID PRIMARY KEY, heartbeat_at TIMESTAMPTZ NOT NULL, created_at TIMESTAMPTZ NOT NULL, updated_at TIMESTAMPTZ NOT NULL);
CREATE INDEX idx_heartbeat ON worker_nodes (heartbeat_at);
CREATE TABLE consumer_assignments (consumer_name TEXT PRIMARY KEY, worker_id UUID NOT NULL, created_at TIMESTAMPTZ NOT NULL, updated_at TIMESTAMPTZ NOT NULL);
CREATE TABLE consumer_checkpoints (consumer_name TEXT PRIMARY KEY, last_position BIGINT NOT NULL DEFAULT 0, created_at TIMESTAMPTZ NOT NULL DEFAULT now(), updated_at TIMESTAMPTZ NOT NULL DEFAULT now());
CREATE TABLE consumer_gap_skips (id BIGSERIAL PRIMARY KEY, consumer_name TEXT NOT NULL, worker_id UUID NOT NULL, gap_position BIGINT NOT NULL, skip_to_position BIGINT NOT NULL,
  highest_visible_position BIGINT NOT NULL, first_seen_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), created_at TIMESTAMPTZ NOT NULL DEFAULT now());
CREATE TABLE events (global_position BIGSERIAL PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL, aggregate_version BIGINT NOT NULL, event_id UUID NOT NULL UNIQUE,
  event_type TEXT NOT NULL, event_version INT NOT NULL DEFAULT 1, payload BYTEA, trace_id TEXT, correlation_id TEXT, causation_id TEXT, metadata JSONB,
  created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), UNIQUE (aggregate_type, aggregate_id, aggregate_version));
CREATE TABLE aggregate_heads (aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL, aggregate_version BIGINT NOT NULL, updated_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (aggregate_type, aggregate_id));
INSERT INTO worker_nodes VALUES ('11111111-1111-1111-1111-111111111111', now(), now(), now());
INSERT INTO consumer_assignments VALUES ('c', '11111111-1111-1111-1111-111111111111', now(), now());
INSERT INTO consumer_checkpoints VALUES ('c', 42);
INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, skip_to_position, highest_visible_position, first_seen_at) VALUES ('c', '11111111-1111-1111-1111-111111111111', 7, 9, 12, now());
INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type) VALUES ('a', '1', 1, '22222222-2222-2222-2222-222222222222', 't');
`

func TestOlderTablesAreUpgradedInPlace(t *testing.T) {
	t.Parallel()
	upgrades := map[string]func(*testing.T, *pgtest.Database){
		"Apply": func(t *testing.T, d *pgtest.Database) { apply(t, d.DB, nil) },
		"SQL":   func(t *testing.T, d *pgtest.Database) { runFiles(t, d.OpenPQ(t), nil) },
	}
	for name, upgrade := range upgrades {
		t.Run(name, func(t *testing.T) {
			d := pgtest.Empty(t)
			d.Exec(t, older)
			upgrade(t, d)
			d.Exec(t, `ALTER INDEX idx_heartbeat RENAME TO worker_nodes_heartbeat_at_idx`) // the existing index is used
			complete(t, d.DB)
			equal(t, "rows", list(t, d.DB, `
SELECT 'node ' || protocol || (consumers IS NULL)::text FROM worker_nodes
UNION ALL SELECT 'assignment ' || consumer_name FROM consumer_assignments
UNION ALL SELECT 'checkpoint ' || last_position || ' ' || revision FROM consumer_checkpoints
UNION ALL SELECT 'skip ' || gap_position || '-' || skip_to_position || ' ' || state FROM consumer_gap_skips
UNION ALL SELECT 'event ' || global_position FROM events`),
				[]string{"node 1true", "assignment c", "checkpoint 42 0", "skip 7-9 void", "event 1"})
		})
	}
}

// version3 changes the current tables to those of version 3, with rows.
const version3 = `
ALTER TABLE worker_nodes DROP COLUMN partitions;
ALTER TABLE consumer_assignments DROP COLUMN partitions;
ALTER TABLE consumer_checkpoints DROP COLUMN receipt, DROP COLUMN effects, DROP COLUMN split_at, DROP COLUMN partitions, DROP COLUMN partition_key;
ALTER TABLE consumer_dead_letters DROP COLUMN received, DROP COLUMN replay, DROP COLUMN forget, DROP COLUMN order_type, DROP COLUMN order_id, DROP COLUMN order_key;
DROP TABLE consumer_receipts;
UPDATE consumer_checkpoints_schema SET applied = 3;
INSERT INTO worker_nodes (worker_id, consumers, protocol) VALUES ('11111111-1111-1111-1111-111111111111', '{c}', 2);
INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', '11111111-1111-1111-1111-111111111111');
INSERT INTO consumer_checkpoints (consumer_name, last_position, revision) VALUES ('c', 42, 7);
INSERT INTO consumer_checkpoints (consumer_name, revision, paused_at, paused_by, paused_reason) VALUES ('d', 1, now(), 'ops', 'why');
INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('c', 7, 'Order', 'o7', gen_random_uuid(), 'E', 1);
`

// An upgrade leaves the rows of unsplit consumers unchanged, and programs of version 3 can
// still write them.
func TestUpgradeLeavesRowsUnchanged(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, version3)
	before := map[string]string{}
	tables := []string{"worker_nodes", "consumer_assignments", "consumer_checkpoints", "consumer_dead_letters"}
	rows := func(table string) string {
		return strings.Join(list(t, d.DB, `SELECT (to_jsonb(r) - 'split_at' - 'partitions' - 'partition_key' - 'order_key' - 'order_type' - 'order_id' - 'effects' - 'replay' - 'forget' - 'receipt' - 'received')::text FROM `+table+` AS r ORDER BY 1`), "\n")
	}
	for _, table := range tables {
		before[table] = rows(table)
	}
	apply(t, d.DB, nil)
	complete(t, d.DB)
	for _, table := range tables {
		if after := rows(table); after != before[table] {
			t.Errorf("%s had\n%s\nand has\n%s", table, before[table], after)
		}
	}
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 43, revision = 8 WHERE consumer_name = 'c'`)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('e', 0)`)
	d.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('e', '11111111-1111-1111-1111-111111111111')`)
	d.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers) VALUES ('22222222-2222-2222-2222-222222222222', '{e}')`)
	d.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('c', 8, 'Order', 'o8', gen_random_uuid(), 'E', 1)`)
	equal(t, "what is in the new columns", list(t, d.DB, `
SELECT DISTINCT 'checkpoints ' || coalesce(split_at::text, '-') || coalesce(partitions::text, '-') || partition_key FROM consumer_checkpoints
UNION SELECT DISTINCT 'assignments ' || coalesce(partitions::text, '-') FROM consumer_assignments
UNION SELECT DISTINCT 'nodes ' || coalesce(partitions::text, '-') FROM worker_nodes
UNION SELECT 'letters ' || coalesce(order_key, '-') || order_type || order_id FROM consumer_dead_letters`), []string{"checkpoints --", "assignments -", "nodes -", "letters -Ordero7", "letters -Ordero8"})
	d.Exec(t, `UPDATE consumer_checkpoints SET split_at = now() WHERE consumer_name = 'd'`)
	if _, err := d.DB.ExecContext(t.Context(), `UPDATE consumer_checkpoints SET paused_at = NULL WHERE consumer_name = 'd'`); err == nil {
		t.Error("an older program may resume the row of a consumer that is split")
	}
}

// version4 changes the current tables to those of version 4, with rows.
const version4 = `
ALTER TABLE consumer_checkpoints DROP COLUMN receipt, DROP COLUMN effects;
ALTER TABLE consumer_dead_letters DROP COLUMN received, DROP COLUMN replay, DROP COLUMN forget;
DROP TABLE consumer_receipts;
UPDATE consumer_checkpoints_schema SET applied = 4;
INSERT INTO consumer_checkpoints (consumer_name, last_position, revision) VALUES ('c', 42, 7);
INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('c', 7, 'Order', 'o7', gen_random_uuid(), 'E', 1);
`

// After the upgrade, a consumer of version 4 has had the effects up to its checkpoint. Its dead
// letters count as failed, not as replayed. Programs of version 4 can still write the rows.
func TestEffectsOfVersion4(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, version4)
	if err := migrations.Check(t.Context(), d.DB, nil); !errors.Is(err, migrations.ErrNotApplied) {
		t.Errorf("before: %v", err)
	}
	apply(t, d.DB, nil)
	complete(t, d.DB)
	d.Exec(t, `UPDATE consumer_checkpoints SET last_position = 43, revision = 8`)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('e', 0)`)
	d.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('c', 8, 'Order', 'o8', gen_random_uuid(), 'E', 1)`)
	equal(t, "what is in the tables", list(t, d.DB, `
SELECT consumer_name || ' ' || last_position || ' ' || revision || ' ' || effects FROM consumer_checkpoints
UNION SELECT global_position || ' ' || replay || ' ' || forget FROM consumer_dead_letters`),
		[]string{"c 43 8 []", "e 0 0 []", "7 false false", "8 false false"})
	equal(t, "the versions", list(t, d.DB, `SELECT version || ' ' || applied FROM consumer_checkpoints_schema`), []string{fmt.Sprintf("2 %d", migrations.Version)})
}

// runFiles executes each generated text as one string, as migration tools do.
func runFiles(t *testing.T, db *sql.DB, c *migrations.Config) {
	t.Helper()
	for _, f := range []func(*migrations.Config) (string, error){migrations.StoreSQL, migrations.SQL} {
		text, err := f(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

func TestFilesRunTwice(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	for _, db := range []*sql.DB{d.OpenPQ(t), d.OpenMode(t, pgx.QueryExecModeSimpleProtocol)} {
		for range 2 {
			runFiles(t, db, nil)
			runFiles(t, db, &custom)
		}
	}
	complete(t, d.DB)
	if err := migrations.Check(t.Context(), d.DB, &custom); err != nil {
		t.Error(err)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	both := map[string]func() error{
		"Apply": func() error { return migrations.Apply(t.Context(), d.DB, nil) },
		"Check": func() error { return migrations.Check(t.Context(), d.DB, nil) },
	}
	d.Exec(t, `UPDATE consumer_checkpoints_schema SET applied = 9`)
	for what, f := range both {
		if err := f(); err != nil {
			t.Errorf("%s beside newer tables that older programs may use: %v", what, err)
		}
	}
	d.Exec(t, `DROP TABLE worker_nodes`)
	for what, sentinel := range map[string]error{"Apply": migrations.ErrNewerVersion, "Check": migrations.ErrNotApplied} {
		if err := both[what](); !errors.Is(err, sentinel) || !strings.Contains(err.Error(), `"worker_nodes"`) {
			t.Errorf("%s of newer tables of which one is missing: %v", what, err)
		}
	}
	d.Exec(t, `UPDATE consumer_checkpoints_schema SET version = 8`)
	for what, f := range both {
		err := f()
		if !errors.Is(err, migrations.ErrNewerVersion) {
			t.Fatalf("%s of tables that no older program may use: %v", what, err)
		}
		for _, want := range []string{"has version 9", "version 8 or later", fmt.Sprintf("this program has version %d", migrations.Version)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", what, err, want)
			}
		}
	}
	if got := list(t, d.DB, `SELECT 'there' WHERE to_regclass('worker_nodes') IS NOT NULL`); len(got) > 0 {
		t.Error("Apply changed newer tables")
	}
	runFiles(t, d.DB, nil)
	equal(t, "versions after an older file", list(t, d.DB, versionQuery), []string{"8 of 9"})

	for _, lower := range []string{
		`UPDATE consumer_checkpoints_schema SET version = 0, applied = NULL`,
		`UPDATE consumer_checkpoints_schema SET version = 2, applied = NULL`,
		`ALTER TABLE consumer_checkpoints_schema DROP COLUMN applied`,
		`DELETE FROM consumer_checkpoints_schema`,
	} {
		d.Exec(t, lower)
		err := migrations.Check(t.Context(), d.DB, nil)
		if !errors.Is(err, migrations.ErrNotApplied) || !strings.Contains(err.Error(), "migrate-gen") {
			t.Errorf("Check of an older database: %v", err)
		}
		apply(t, d.DB, nil)
		complete(t, d.DB)
	}
}

// with returns a pool whose sessions have one more setting.
func with(t *testing.T, d *pgtest.Database, setting, value string) *sql.DB {
	t.Helper()
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal("the connection string is no URL")
	}
	q := u.Query()
	q.Set(setting, value)
	u.RawQuery = q.Encode()
	db, err := sql.Open("pgx", u.String())
	if err != nil {
		t.Fatal("pgx does not take the connection string")
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// If the tables are up to date, Apply does not wait for a long transaction. So no other process
// waits behind Apply.
func TestApplyTakesNoLocksIfUpToDate(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx, err := d.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, table := range list(t, d.DB, `SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`) {
		if _, err := tx.ExecContext(t.Context(), `LOCK TABLE `+table+` IN ROW EXCLUSIVE MODE`); err != nil {
			t.Fatal(err)
		}
	}
	impatient := with(t, d, "lock_timeout", "1") // milliseconds
	if err := migrations.Apply(t.Context(), impatient, nil); err != nil {
		t.Errorf("Apply waited: %v", err)
	}
	for _, f := range []func(*migrations.Config) (string, error){migrations.StoreSQL, migrations.SQL} {
		text, err := f(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := impatient.ExecContext(t.Context(), text); err != nil {
			t.Errorf("the text waited: %v", err)
		}
	}
	if _, err := impatient.ExecContext(t.Context(), `ALTER TABLE worker_nodes ADD COLUMN IF NOT EXISTS pid INT`); err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("the locks held would not have stopped an upgrade, so this test shows nothing: %v", err)
	}
}

// An upgrade beside a long transaction, such as that of pg_dump, releases its locks between its
// tries. If ctx ends first, the error names the transaction. After the transaction, the upgrade
// succeeds.
func TestApplyReleasesLocksBetweenTries(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	dumper := fmt.Sprint("dump", time.Now().UnixNano())
	d.Exec(t, `ALTER TABLE worker_nodes DROP COLUMN partitions; INSERT INTO worker_nodes (worker_id) VALUES (gen_random_uuid())`)
	dump, err := with(t, d, "application_name", dumper).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Rollback()
	if _, err := dump.Exec(`LOCK TABLE worker_nodes IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	applied := make(chan error, 1)
	go func() { applied <- migrations.Apply(ctx, d.DB, nil) }()
	heartbeats := with(t, d, "lock_timeout", "4000") // milliseconds
	for range 3 {                                    // each waits for one try at most
		pgtest.AwaitBlockedFor(t, d.DB, 100*time.Millisecond)
		if _, err := heartbeats.ExecContext(t.Context(), `UPDATE worker_nodes SET heartbeat_at = clock_timestamp()`); err != nil {
			t.Fatalf("a heartbeat waits behind the upgrade: %v", err)
		}
	}
	cancel()
	if text := logged.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "(application_name "+dumper+", idle in transaction)") {
		t.Errorf("Apply has logged %q", text)
	}
	if err := <-applied; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "(application_name "+dumper+", idle in transaction)") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Apply ended with %v", err)
	}
	go func() { applied <- migrations.Apply(t.Context(), d.DB, nil) }()
	pgtest.AwaitBlockedFor(t, d.DB, 100*time.Millisecond)
	if err := dump.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-applied; err != nil {
		t.Errorf("after the transaction: %v", err)
	}
	complete(t, d.DB)
}

func TestCheckFindsMissingIndexes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `DROP INDEX events_aggregate_type_global_position_idx`)
	apply(t, d.DB, nil)
	complete(t, d.DB)
}

// unprivileged returns a pool of a role that may not create schemas.
func unprivileged(t *testing.T, d *pgtest.Database) (db *sql.DB, role string) {
	t.Helper()
	role = "r_" + list(t, d.DB, `SELECT current_database()::text`)[0]
	d.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
		defer cancel()
		for _, s := range []string{`DROP OWNED BY ` + role + ` CASCADE`, `DROP ROLE ` + role} {
			if _, err := d.DB.ExecContext(ctx, s); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
	})
	return with(t, d, "role", role), role
}

func TestApplyWithoutTheRightToCreateSchemas(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	db, role := unprivileged(t, d)
	c := migrations.Config{
		WorkerNodesTable: "app.n", ConsumerAssignmentsTable: "app.a", ConsumerCheckpointsTable: "app.c",
		ConsumerGapSkipsTable: "app.g", LeaderElectionTable: "app.l", EventsTable: "app.e", AggregateHeadsTable: "app.h",
	}
	if err := migrations.Apply(t.Context(), db, &c); err == nil || !strings.Contains(err.Error(), `CREATE SCHEMA IF NOT EXISTS "app"`) {
		t.Fatalf("a missing schema that the role may not create: %v", err)
	}
	d.Exec(t, `CREATE SCHEMA app`)
	d.Exec(t, `GRANT USAGE, CREATE ON SCHEMA app TO `+role)
	apply(t, db, &c)
	d.Exec(t, `REVOKE CREATE ON SCHEMA app FROM `+role)
	apply(t, db, &c)
}

// Apply refuses to create tables without a schema that would hide older ones and their
// checkpoints.
func TestApplyHidesNoTables(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.Exec(t, `CREATE SCHEMA app`)
	db := with(t, d, "search_path", "app,public")
	apply(t, db, nil) // the tables are up to date
	d.Exec(t, `UPDATE consumer_checkpoints_schema SET applied = 1`)
	err := migrations.Apply(t.Context(), db, nil)
	if err == nil || !strings.Contains(err.Error(), `"consumer_checkpoints"`) || !strings.Contains(err.Error(), "schema") {
		t.Errorf("an upgrade through another search path: %v", err)
	}
	if got := list(t, d.DB, `SELECT relname FROM pg_class WHERE relnamespace = 'app'::regnamespace`); len(got) > 0 {
		t.Errorf("created in front of the old ones: %q", got)
	}
}

func TestNamesTakenByOthers(t *testing.T) {
	t.Parallel()
	for _, taken := range []string{
		`CREATE VIEW worker_leader_election AS SELECT 1`,
		`CREATE TABLE mine (x int); CREATE INDEX consumer_checkpoints_settled ON mine (x)`,
		`CREATE TABLE worker_nodes_heartbeat_at_idx (x int)`,
	} {
		d := pgtest.Empty(t)
		d.Exec(t, taken)
		before := list(t, d.DB, `SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace`)
		if err := migrations.Apply(t.Context(), d.DB, nil); err == nil || !strings.Contains(err.Error(), "choose other table names") {
			t.Errorf("%s: %v", taken, err)
		}
		equal(t, taken, list(t, d.DB, `SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace`), before)
	}
}

// Apply waits for a concurrent Apply whatever time limits the role has. Its later statements
// wait for at most a second.
func TestConcurrentApplyUnderTimeLimits(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"lock_timeout", "statement_timeout"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			other, err := d.DB.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer other.Rollback()
			if _, err := other.Exec(`SELECT pg_advisory_xact_lock(hashtextextended('github.com/pgfrontier/worker/migrations', 0))`); err != nil {
				t.Fatal(err)
			}
			applied := make(chan error, 1)
			limited := with(t, d, setting, "1000") // milliseconds
			go func() { applied <- migrations.Apply(t.Context(), limited, nil) }()
			if setting == "lock_timeout" {
				pgtest.AwaitBlockedFor(t, d.DB, 1500*time.Millisecond)
			} else {
				first := pgtest.AwaitBlockedFor(t, d.DB, 0)
				if !pgtest.Poll(func() bool { return pgtest.AwaitBlockedFor(t, d.DB, 0).After(first) }) {
					t.Fatal("waited in vain for another try")
				}
			}
			if err := other.Rollback(); err != nil {
				t.Fatal(err)
			}
			if err := <-applied; err != nil {
				t.Error(err)
			}
		})
	}
}
