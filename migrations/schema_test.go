package migrations_test

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/migrations"
)

// list returns the query's rows, each as one string.
func list(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%v\nin: %s", err, query)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, s := range got {
		if !slices.Contains(want, s) {
			t.Errorf("%s: there is     %s", what, s)
		}
	}
	for _, s := range want {
		if !slices.Contains(got, s) {
			t.Errorf("%s: there is not %s", what, s)
		}
	}
}

const columnsQuery = `
SELECT c.table_name || ': ' || column_name || ' ' || udt_name
       || CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END || coalesce(' default ' || column_default, '')
  FROM information_schema.columns c WHERE table_schema = 'public'`

var columns = strings.Split(strings.TrimSpace(`
events: global_position int8 not null default nextval('events_global_position_seq'::regclass)
events: aggregate_type text not null
events: aggregate_id text not null
events: aggregate_version int8 not null
events: event_id uuid not null
events: event_type text not null
events: event_version int4 not null default 1
events: payload bytea
events: trace_id text
events: correlation_id text
events: causation_id text
events: metadata jsonb
events: created_at timestamptz not null default clock_timestamp()
aggregate_heads: aggregate_type text not null
aggregate_heads: aggregate_id text not null
aggregate_heads: aggregate_version int8 not null
aggregate_heads: updated_at timestamptz not null default clock_timestamp()
worker_nodes: worker_id uuid not null
worker_nodes: heartbeat_at timestamptz not null default clock_timestamp()
worker_nodes: created_at timestamptz not null default clock_timestamp()
worker_nodes: updated_at timestamptz not null default clock_timestamp()
worker_nodes: consumers _text
worker_nodes: hostname text
worker_nodes: pid int4
worker_nodes: protocol int4 not null default 1
worker_nodes: build text
worker_nodes: status jsonb
worker_nodes: partitions jsonb
worker_nodes: heartbeat_interval interval
worker_nodes: draining bool not null default false
worker_nodes: heartbeat_timeout interval
worker_nodes: drain_requested_at timestamptz
consumer_past_workers: worker_id uuid not null
consumer_past_workers: stopped_at timestamptz not null
consumer_past_workers: how text not null
consumer_past_workers: declared_by uuid
consumer_past_workers: hostname text
consumer_past_workers: pid int4
consumer_past_workers: build text
consumer_past_workers: started_at timestamptz
consumer_assignments: consumer_name text not null
consumer_assignments: worker_id uuid not null
consumer_assignments: created_at timestamptz not null default clock_timestamp()
consumer_assignments: updated_at timestamptz not null default clock_timestamp()
consumer_assignments: partitions int4
consumer_checkpoints: consumer_name text not null
consumer_checkpoints: last_position int8 not null default 0
consumer_checkpoints: created_at timestamptz not null default clock_timestamp()
consumer_checkpoints: updated_at timestamptz not null default clock_timestamp()
consumer_checkpoints: revision int8 not null default 0
consumer_checkpoints: paused_at timestamptz
consumer_checkpoints: paused_by text
consumer_checkpoints: paused_reason text
consumer_checkpoints: split_at timestamptz
consumer_checkpoints: partitions int4
consumer_checkpoints: partition_key text not null default ''::text
consumer_checkpoints: effects jsonb not null default '[]'::jsonb
consumer_checkpoints: scope jsonb
consumer_checkpoints: scope_since int8
consumer_checkpoints: receipt _int8
consumer_gap_skips: id int8 not null default nextval('consumer_gap_skips_id_seq'::regclass)
consumer_gap_skips: consumer_name text not null
consumer_gap_skips: worker_id uuid not null
consumer_gap_skips: gap_position int8 not null
consumer_gap_skips: skip_to_position int8 not null
consumer_gap_skips: highest_visible_position int8 not null
consumer_gap_skips: first_seen_at timestamptz not null default clock_timestamp()
consumer_gap_skips: created_at timestamptz not null default clock_timestamp()
consumer_gap_skips: gap_end int8
consumer_gap_skips: missing int8
consumer_gap_skips: state text not null default 'void'::text
consumer_gap_skips: closed_at timestamptz
consumer_dead_letters: consumer_name text not null
consumer_dead_letters: global_position int8 not null
consumer_dead_letters: aggregate_type text not null
consumer_dead_letters: aggregate_id text not null
consumer_dead_letters: event_id uuid not null
consumer_dead_letters: event_type text not null
consumer_dead_letters: error text
consumer_dead_letters: attempts int4 not null
consumer_dead_letters: retry_at timestamptz
consumer_dead_letters: created_at timestamptz not null default clock_timestamp()
consumer_dead_letters: updated_at timestamptz not null default clock_timestamp()
consumer_dead_letters: order_key text
consumer_dead_letters: order_type text not null
consumer_dead_letters: order_id text not null
consumer_dead_letters: replay bool not null default false
consumer_dead_letters: forget bool not null default false
consumer_dead_letters: received bool not null default false
consumer_operations: id int8 not null default nextval('consumer_operations_id_seq'::regclass)
consumer_operations: consumer_name text not null
consumer_operations: operation text not null
consumer_operations: detail jsonb
consumer_operations: operator text not null
consumer_operations: reason text not null
consumer_operations: created_at timestamptz not null default clock_timestamp()
consumer_receipts: id uuid not null default gen_random_uuid()
consumer_receipts: consumer_name text not null
consumer_receipts: unit text not null
consumer_receipts: first_position int8 not null
consumer_receipts: last_position int8 not null
consumer_receipts: events int8 not null
consumer_receipts: positions int8 not null
consumer_receipts: hash int8 not null
consumer_receipts: event_id uuid
consumer_receipts: partition_key text not null
consumer_receipts: scope jsonb
consumer_receipts: created_at timestamptz not null default clock_timestamp()
worker_leader_election: name text not null
worker_leader_election: worker_id uuid
worker_leader_election: term int8 not null default 0
worker_leader_election: acquired_at timestamptz
worker_leader_election: expires_at timestamptz
consumer_checkpoints_token: only bool not null default true
consumer_checkpoints_token: token uuid not null
consumer_checkpoints_token: database oid not null
consumer_checkpoints_settled: log int8 not null
consumer_checkpoints_settled: settled int8 not null
consumer_checkpoints_settled: updated_at timestamptz not null default clock_timestamp()
consumer_checkpoints_changes: only bool not null default true
consumer_checkpoints_changes: count int8 not null
consumer_checkpoints_schema: only bool not null default true
consumer_checkpoints_schema: version int4 not null
consumer_checkpoints_schema: applied int4
`), "\n")

const indexesQuery = `SELECT regexp_replace(replace(indexdef, 'public.', ''), 'CREATE (UNIQUE )?INDEX (\S+) ON (\S+) USING btree', '\3: \1\2') FROM pg_indexes WHERE schemaname = 'public'`

var indexes = strings.Split(strings.TrimSpace(`
events: UNIQUE events_pkey (global_position)
events: UNIQUE events_event_id_key (event_id)
events: UNIQUE events_aggregate_type_aggregate_id_aggregate_version_key (aggregate_type, aggregate_id, aggregate_version)
events: events_aggregate_type_global_position_idx (aggregate_type, global_position)
aggregate_heads: UNIQUE aggregate_heads_pkey (aggregate_type, aggregate_id)
worker_nodes: UNIQUE worker_nodes_pkey (worker_id)
worker_nodes: worker_nodes_heartbeat_at_idx (heartbeat_at)
consumer_past_workers: UNIQUE consumer_past_workers_pkey (worker_id, stopped_at)
consumer_assignments: UNIQUE consumer_assignments_pkey (consumer_name)
consumer_assignments: consumer_assignments_worker_id_idx (worker_id)
consumer_checkpoints: UNIQUE consumer_checkpoints_pkey (consumer_name)
consumer_gap_skips: UNIQUE consumer_gap_skips_pkey (id)
consumer_gap_skips: consumer_gap_skips_consumer_name_gap_position_idx (consumer_name, gap_position) WHERE (state = 'open'::text)
consumer_gap_skips: consumer_gap_skips_consumer_name_id_idx (consumer_name, id)
consumer_gap_skips: consumer_gap_skips_closed_at_idx (closed_at) WHERE (state <> 'open'::text)
consumer_dead_letters: UNIQUE consumer_dead_letters_pkey (consumer_name, global_position)
consumer_dead_letters: consumer_dead_letters_retry_at_idx (consumer_name, retry_at, global_position) WHERE (retry_at IS NOT NULL)
consumer_dead_letters: consumer_dead_letters_aggregate_position_idx (consumer_name, aggregate_type, aggregate_id, global_position)
consumer_dead_letters: consumer_dead_letters_order_position_idx (consumer_name, order_type, order_id, global_position)
consumer_operations: UNIQUE consumer_operations_pkey (id)
consumer_operations: consumer_operations_consumer_name_id_idx (consumer_name, id)
consumer_receipts: UNIQUE consumer_receipts_pkey (id)
consumer_receipts: consumer_receipts_consumer_name_last_position_idx (consumer_name, last_position)
worker_leader_election: UNIQUE worker_leader_election_pkey (name)
consumer_checkpoints_token: UNIQUE consumer_checkpoints_token_pkey ("only")
consumer_checkpoints_settled: UNIQUE consumer_checkpoints_settled_pkey (log)
consumer_checkpoints_changes: UNIQUE consumer_checkpoints_changes_pkey ("only")
consumer_checkpoints_schema: UNIQUE consumer_checkpoints_schema_pkey ("only")
`), "\n")

const checksQuery = `SELECT conrelid::regclass || ': ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c' AND connamespace = 'public'::regnamespace`

var checks = []string{
	`consumer_gap_skips: CHECK ((state = ANY (ARRAY['void'::text, 'open'::text, 'late'::text])))`,
	`consumer_past_workers: CHECK ((how = ANY (ARRAY['stopped'::text, 'failed'::text, 'drained'::text, 'dead'::text])))`,
	`consumer_checkpoints: CHECK (((split_at IS NULL) OR (paused_at IS NOT NULL)))`,
	`consumer_checkpoints_token: CHECK ("only")`,
	`consumer_checkpoints_changes: CHECK ("only")`,
	`consumer_checkpoints_schema: CHECK ("only")`,
}

// versionQuery returns the version of the oldest program that may run, and the tables' version.
const versionQuery = `SELECT version || ' of ' || applied FROM consumer_checkpoints_schema`

// complete fails unless the database has exactly the default tables.
func complete(t *testing.T, db *sql.DB) {
	t.Helper()
	equal(t, "columns", list(t, db, columnsQuery), columns)
	equal(t, "indexes", list(t, db, indexesQuery), indexes)
	found := list(t, db, checksQuery)
	equal(t, "constraints", found, checks)
	if len(found) != len(checks) {
		t.Errorf("constraints are repeated: %q", found)
	}
	equal(t, "unlogged tables", list(t, db, `SELECT relname FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r' AND relnamespace = 'public'::regnamespace`), []string{"consumer_checkpoints_token"})
	equal(t, "versions", list(t, db, versionQuery), []string{fmt.Sprint("2 of ", migrations.Version)})
}
