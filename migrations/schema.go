package migrations

import (
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/tables"
)

// Version is the version of the tables that this package creates. A change of the tables raises it.
// A table beside the checkpoints records it.
const Version = 7

// oldest is the version of the oldest programs that may run beside these tables. The database
// records it, too, so an older process can restart after an upgrade. oldest grows only if such
// a program would go wrong. Then all older programs must be stopped before the upgrade.
const oldest = 2

// schema is a set of tables with one version, and the tables beside them without a version.
type schema struct {
	tables.Tables // of the worker and of its log
	own, beside   []table
	edition
}

// edition is a version of tables, and the table that records it.
type edition struct {
	record          ident.Table
	version, oldest int    // as [Version] and oldest are
	remedy          string // for tables that are not up to date
}

// newSchema validates the names and returns the tables of the worker and of the event store.
func newSchema(c *Config) (schema, error) {
	n, err := c.tables()
	if err != nil {
		return schema{}, err
	}
	s := schema{Tables: n, own: workerTables(n), beside: storeTables(n), edition: edition{n.Version, Version, oldest,
		"call migrations.Apply with these table names, or run the SQL that cmd/migrate-gen writes for them"}}
	return s, checkDistinct(slices.Concat(s.own, s.beside))
}

const now = "TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()"

// stamps sets defaults on which inserts rely, in tables that another program created.
var stamps = []string{
	"ALTER COLUMN created_at SET DEFAULT clock_timestamp()",
	"ALTER COLUMN updated_at SET DEFAULT clock_timestamp()",
}

// workerTables returns the worker's tables in order of creation. columns are those that every
// version had. Later columns are in changes, so that older tables get them, too.
func workerTables(n tables.Tables) []table {
	return []table{
		{
			Table: n.Nodes, comment: "one row for each live worker process",
			columns: []string{"worker_id UUID NOT NULL", "heartbeat_at " + now, "created_at " + now, "updated_at " + now},
			key:     "worker_id",
			changes: append([]string{
				"ADD COLUMN IF NOT EXISTS consumers TEXT[]",
				"ADD COLUMN IF NOT EXISTS hostname TEXT",
				"ADD COLUMN IF NOT EXISTS pid INT",
				"ADD COLUMN IF NOT EXISTS protocol INT NOT NULL DEFAULT 1",
				"ADD COLUMN IF NOT EXISTS build TEXT",
				"ADD COLUMN IF NOT EXISTS status JSONB",
				"ADD COLUMN IF NOT EXISTS partitions JSONB", // null: a build without partition support
				"ADD COLUMN IF NOT EXISTS heartbeat_interval INTERVAL",
				"ADD COLUMN IF NOT EXISTS draining BOOLEAN NOT NULL DEFAULT false", // the worker finishes its batches in flight, and gets no assignment
				"ADD COLUMN IF NOT EXISTS heartbeat_timeout INTERVAL",              // null: a build that does not report it; the timeout of the other workers applies
				"ADD COLUMN IF NOT EXISTS drain_requested_at TIMESTAMPTZ",          // when an operator asked it to drain
				"ALTER COLUMN heartbeat_at SET DEFAULT clock_timestamp()",
			}, stamps...),
			indexes: []index{{on: "heartbeat_at"}},
		},
		stoppedTable(n.Stopped),
		{
			Table: n.Assignments, comment: "which worker runs which consumer",
			columns: []string{"consumer_name TEXT NOT NULL", "worker_id UUID NOT NULL", "created_at " + now, "updated_at " + now},
			key:     "consumer_name",
			// A worker's row may be removed before its assignments, or during a batch.
			changes: append([]string{
				"DROP CONSTRAINT IF EXISTS " + ident.Quote(givenName(n.Assignments.Name, "_worker_id_fkey")),
				"ADD COLUMN IF NOT EXISTS partitions INT", // of the consumer, set by the leader; null: no change
			}, stamps...),
			indexes: []index{{on: "worker_id"}},
		},
		{
			Table: n.Checkpoints, comment: "how far each consumer has come; revision grows with every change of it",
			columns: []string{"consumer_name TEXT NOT NULL", "last_position BIGINT NOT NULL DEFAULT 0", "created_at " + now, "updated_at " + now},
			key:     "consumer_name",
			// A new version of a row usually stays on its page, beside few other rows. A row
			// that moves to another page gets another entry in the index. Each new entry is
			// compared with all entries that an old snapshot keeps.
			with: "fillfactor = 10",
			changes: append([]string{
				"ADD COLUMN IF NOT EXISTS revision BIGINT NOT NULL DEFAULT 0",
				"ADD COLUMN IF NOT EXISTS paused_at TIMESTAMPTZ",
				"ADD COLUMN IF NOT EXISTS paused_by TEXT",
				"ADD COLUMN IF NOT EXISTS paused_reason TEXT",
				// While a consumer is split, its own row is no unit. The row stays paused, so
				// that no build without partition support runs it.
				"ADD COLUMN IF NOT EXISTS split_at TIMESTAMPTZ CHECK (split_at IS NULL OR paused_at IS NOT NULL)",
				"ADD COLUMN IF NOT EXISTS partitions INT", // fixed by an operator
				"ADD COLUMN IF NOT EXISTS partition_key TEXT NOT NULL DEFAULT ''",
				"ADD COLUMN IF NOT EXISTS effects JSONB NOT NULL DEFAULT '[]'", // events whose effects were had: package internal/delivered
				"ADD COLUMN IF NOT EXISTS scope JSONB",                         // selection of the consumer's code: package internal/scope; null: not recorded
				"ADD COLUMN IF NOT EXISTS scope_since BIGINT",                  // the position from which on scope is recorded
				"ADD COLUMN IF NOT EXISTS receipt BIGINT[]",                    // of the events handled last: package internal/receipt; null: none is kept
			}, stamps...),
		},
		{
			Table: n.GapSkips, comment: "the positions without an event that a consumer went past, and what became of them",
			columns: []string{
				"id BIGSERIAL NOT NULL", "consumer_name TEXT NOT NULL", "worker_id UUID NOT NULL",
				"gap_position BIGINT NOT NULL", "skip_to_position BIGINT NOT NULL", "highest_visible_position BIGINT NOT NULL",
				"first_seen_at " + now, "created_at " + now,
			},
			key:    "id",
			serial: "id",
			changes: []string{
				"ADD COLUMN IF NOT EXISTS gap_end BIGINT",
				"ADD COLUMN IF NOT EXISTS missing BIGINT",
				"ADD COLUMN IF NOT EXISTS state TEXT NOT NULL DEFAULT 'void' CHECK (state IN ('void', 'open', 'late'))",
				"ADD COLUMN IF NOT EXISTS closed_at TIMESTAMPTZ DEFAULT now()", // the existing rows are closed
				"ALTER COLUMN created_at SET DEFAULT clock_timestamp()",
			},
			fixes:   []fix{{"closed_at", "DROP DEFAULT"}},
			indexes: []index{{on: "consumer_name, gap_position", where: "state = 'open'"}, {on: "closed_at", where: "state <> 'open'"}, {on: "consumer_name, id"}},
		},
		{
			Table: n.DeadLetters, comment: "events that a consumer could not handle, and those of the same aggregates, or keys, after them",
			columns: []string{
				"consumer_name TEXT NOT NULL", "global_position BIGINT NOT NULL",
				"aggregate_type TEXT NOT NULL", "aggregate_id TEXT NOT NULL", "event_id UUID NOT NULL", "event_type TEXT NOT NULL",
				"error TEXT", "attempts INT NOT NULL", "retry_at TIMESTAMPTZ", "created_at " + now, "updated_at " + now,
			},
			key: "consumer_name, global_position",
			changes: []string{
				"ADD COLUMN IF NOT EXISTS order_key TEXT", // the consumer's own key; null: the aggregate
				"ADD COLUMN IF NOT EXISTS order_type TEXT NOT NULL GENERATED ALWAYS AS (CASE WHEN order_key IS NULL THEN aggregate_type ELSE '' END) STORED",
				"ADD COLUMN IF NOT EXISTS order_id TEXT NOT NULL GENERATED ALWAYS AS (coalesce(order_key, aggregate_id)) STORED",
				"ADD COLUMN IF NOT EXISTS replay BOOLEAN NOT NULL DEFAULT false",   // waits for the replay of an aggregate, and has not failed
				"ADD COLUMN IF NOT EXISTS forget BOOLEAN NOT NULL DEFAULT false",   // the consumer forgets the aggregate first
				"ADD COLUMN IF NOT EXISTS received BOOLEAN NOT NULL DEFAULT false", // the receipts have the event already
			},
			// Builds without keys search by the aggregate.
			indexes: []index{{on: "consumer_name, aggregate_type, aggregate_id, global_position", as: "aggregate_position"}, {on: "consumer_name, order_type, order_id, global_position", as: "order_position"}, {on: "consumer_name, retry_at, global_position", where: "retry_at IS NOT NULL", as: "retry_at"}},
		},
		{
			Table: n.Operations, comment: "what operators have done to consumers",
			columns: []string{
				"id BIGSERIAL NOT NULL", "consumer_name TEXT NOT NULL", "operation TEXT NOT NULL", "detail JSONB",
				"operator TEXT NOT NULL", "reason TEXT NOT NULL", "created_at " + now,
			},
			key:     "id",
			serial:  "id",
			indexes: []index{{on: "consumer_name, id"}},
		},
		{
			Table: n.Receipts, comment: "sums of the events that the batches of each consumer had, to compare with the log",
			columns: []string{
				"id UUID NOT NULL DEFAULT gen_random_uuid()", "consumer_name TEXT NOT NULL", "unit TEXT NOT NULL",
				"first_position BIGINT NOT NULL", "last_position BIGINT NOT NULL", "events BIGINT NOT NULL", "positions BIGINT NOT NULL", "hash BIGINT NOT NULL",
				"event_id UUID", // of a single event, handled after the region of its position had ended; unit may be empty: unknown
				"partition_key TEXT NOT NULL", "scope JSONB", "created_at " + now,
			},
			key:     "id",
			indexes: []index{{on: "consumer_name, last_position"}},
		},
		{
			Table: n.Leader, comment: "the lease of the leader, where no session lock can be used",
			columns: []string{"name TEXT NOT NULL", "worker_id UUID", "term BIGINT NOT NULL DEFAULT 0", "acquired_at TIMESTAMPTZ", "expires_at TIMESTAMPTZ"},
			key:     "name",
			// eventsalsa/worker has a table of this name with other columns. The leases of both
			// libraries fit into the table, each in its own rows. A process of
			// eventsalsa/worker that still runs is not disturbed.
			changes: []string{
				"ADD COLUMN IF NOT EXISTS name TEXT",
				"ADD COLUMN IF NOT EXISTS worker_id UUID",
				"ADD COLUMN IF NOT EXISTS term BIGINT NOT NULL DEFAULT 0",
				"ADD COLUMN IF NOT EXISTS acquired_at TIMESTAMPTZ",
				"ADD COLUMN IF NOT EXISTS expires_at TIMESTAMPTZ",
			},
			fixes:   []fix{{"lease_key", "SET DEFAULT gen_random_uuid()::text"}, {"leader_id", "DROP NOT NULL"}, {"expires_at", "DROP NOT NULL"}},
			indexes: []index{{on: "name", unique: true}}, // eventsalsa/worker needs it; the lease of this library has a primary key
		},
		tokenTable(n.Token),
		{
			Table: n.Settled, comment: "up to where a log is known to be complete; log is the oid of its sequence",
			columns: []string{"log BIGINT NOT NULL", "settled BIGINT NOT NULL", "updated_at " + now},
			key:     "log",
		},
		{
			Table: n.Changes, comment: "counts what the workers should notice soon: arrivals, assignments, operations",
			columns: []string{onlyRow, "count BIGINT NOT NULL"},
			key:     `"only"`,
		},
		{
			// Programs of version 2 know only the first column, and require that it equals
			// their own version.
			Table: n.Version, comment: versionComment,
			columns: []string{onlyRow, "version INT NOT NULL"},
			key:     `"only"`,
			changes: []string{"ADD COLUMN IF NOT EXISTS applied INT"},
		},
	}
}

// stoppedTable returns the table of the workers whose rows are gone.
func stoppedTable(name ident.Table) table {
	return table{
		Table: name, comment: "the workers that have stopped, for a while; nobody judges by it who lives",
		columns: []string{
			"worker_id UUID NOT NULL", "stopped_at TIMESTAMPTZ NOT NULL", "how TEXT NOT NULL CHECK (how IN ('stopped', 'failed', 'drained', 'dead'))",
			"declared_by UUID", "hostname TEXT", "pid INT", "build TEXT", "started_at TIMESTAMPTZ",
		},
		key: "worker_id, stopped_at",
	}
}

// tokenTable returns the table of an incarnation's token.
func tokenTable(name ident.Table) table {
	return table{
		Table: name, comment: "unlogged, so that crash recovery and promotion empty it: then positions may be issued again",
		unlogged: true,
		columns:  []string{onlyRow, "token UUID NOT NULL", "database OID NOT NULL"},
		key:      `"only"`,
	}
}

const versionComment = "version is that of the oldest programs that may run, applied that of the tables"

// onlyRow is a key column that permits one row.
const onlyRow = `"only" BOOLEAN NOT NULL DEFAULT true CHECK ("only")`

func storeTables(n tables.Tables) []table {
	return []table{
		{
			Table: n.Events, comment: "the event log",
			columns: []string{
				"global_position BIGSERIAL NOT NULL",
				"aggregate_type TEXT NOT NULL", "aggregate_id TEXT NOT NULL", "aggregate_version BIGINT NOT NULL",
				"event_id UUID NOT NULL", "event_type TEXT NOT NULL", "event_version INT NOT NULL DEFAULT 1",
				"payload BYTEA", "trace_id TEXT", "correlation_id TEXT", "causation_id TEXT", "metadata JSONB", "created_at " + now,
			},
			key:     "global_position",
			serial:  "global_position",
			unique:  []string{"event_id", "aggregate_type, aggregate_id, aggregate_version"},
			indexes: []index{{on: "aggregate_type, global_position"}},
		},
		{
			Table: n.Heads, comment: "the version of each aggregate",
			columns: []string{"aggregate_type TEXT NOT NULL", "aggregate_id TEXT NOT NULL", "aggregate_version BIGINT NOT NULL", "updated_at " + now},
			key:     "aggregate_type, aggregate_id",
		},
	}
}

// recordVersion never lowers a version: an older program must not undo the record of a newer one.
func (s schema) recordVersion() string {
	return fmt.Sprintf(`INSERT INTO %[1]s AS v (version, applied) VALUES (%[2]d, %[3]d)
ON CONFLICT ("only") DO UPDATE SET version = EXCLUDED.version, applied = EXCLUDED.applied
WHERE v.version <= EXCLUDED.version AND coalesce(v.applied, v.version) < EXCLUDED.applied`, s.record.SQL(), s.oldest, s.version)
}
