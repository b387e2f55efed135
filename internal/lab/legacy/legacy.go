// Package legacy plays, in tests, a process of the libraries that users come
// from: eventsalsa/worker with its store, and pupsourcing's. It has their
// tables, as their documentation and behaviour show them, and executes what
// their processes execute.
package legacy

// WorkerTables are those of eventsalsa/worker. Those of pupsourcing/worker are
// the first three.
const WorkerTables = `
CREATE TABLE worker_nodes (worker_id uuid PRIMARY KEY, heartbeat_at timestamptz DEFAULT now() NOT NULL,
	created_at timestamptz DEFAULT now() NOT NULL, updated_at timestamptz DEFAULT now() NOT NULL);
CREATE INDEX idx_worker_nodes_heartbeat ON worker_nodes (heartbeat_at);
CREATE TABLE consumer_assignments (consumer_name text PRIMARY KEY,
	worker_id uuid REFERENCES worker_nodes ON DELETE SET NULL,
	created_at timestamptz DEFAULT now() NOT NULL, updated_at timestamptz DEFAULT now() NOT NULL);
CREATE INDEX idx_consumer_assignments_worker ON consumer_assignments (worker_id);
CREATE TABLE consumer_checkpoints (consumer_name text PRIMARY KEY, last_position bigint DEFAULT 0 NOT NULL,
	created_at timestamptz DEFAULT now() NOT NULL, updated_at timestamptz DEFAULT now() NOT NULL);
CREATE TABLE consumer_gap_skips (id bigserial PRIMARY KEY, consumer_name text NOT NULL, worker_id uuid NOT NULL,
	gap_position bigint NOT NULL, skip_to_position bigint NOT NULL, highest_visible_position bigint NOT NULL,
	first_seen_at timestamptz NOT NULL, created_at timestamptz DEFAULT now() NOT NULL);
CREATE INDEX idx_consumer_gap_skips_consumer ON consumer_gap_skips (consumer_name, created_at DESC);
CREATE TABLE worker_leader_election (lease_key text PRIMARY KEY,
	leader_id uuid REFERENCES worker_nodes ON DELETE CASCADE, expires_at timestamptz NOT NULL,
	created_at timestamptz DEFAULT now() NOT NULL, updated_at timestamptz DEFAULT now() NOT NULL);
`

// StoreTables are those of pupsourcing/store.
const StoreTables = `
CREATE TABLE events (global_position bigserial PRIMARY KEY,
	aggregate_type text NOT NULL, aggregate_id text NOT NULL, aggregate_version bigint NOT NULL,
	event_id uuid NOT NULL UNIQUE, event_type text NOT NULL, event_version int DEFAULT 1 NOT NULL, payload bytea NOT NULL,
	trace_id text, correlation_id text, causation_id text, metadata jsonb, created_at timestamptz DEFAULT now() NOT NULL,
	UNIQUE (aggregate_type, aggregate_id, aggregate_version));
CREATE INDEX idx_events_aggregate ON events (aggregate_type, aggregate_id, aggregate_version);
CREATE INDEX idx_events_event_type ON events (event_type, global_position);
CREATE INDEX idx_events_correlation ON events (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX idx_events_aggregate_type_position ON events (aggregate_type, global_position);
CREATE TABLE aggregate_heads (aggregate_type text NOT NULL, aggregate_id text NOT NULL, aggregate_version bigint NOT NULL,
	updated_at timestamptz DEFAULT now() NOT NULL, PRIMARY KEY (aggregate_type, aggregate_id));
CREATE INDEX idx_aggregate_heads_updated ON aggregate_heads (updated_at);
`
