package coord

// statements is the SQL of a Coordinator. $1 is always the worker's id.
type statements struct {
	clean, register, beat string
	follow, lead          string
	assignments, assign   string
	leave                 string
}

// advisoryLocks are the session locks with a key of 64 bits, which pg_locks
// shows in two halves.
const advisoryLocks = `
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

const advisoryKey = `((classid::bigint << 32) | objid::bigint)`

// leads proves that the lock with key $2 is held by the very backend that runs
// the statement, which cannot lose it before the statement has ended.
const leads = `EXISTS (SELECT` + advisoryLocks + ` AND mode = 'ExclusiveLock' AND pid = pg_backend_pid() AND ` + advisoryKey + ` = $2::bigint)`

func (c Config) statements() statements {
	nodes, assignments := c.Nodes.SQL(), c.Assignments.SQL()
	seen := `
SELECT pg_backend_pid(),
	EXISTS (SELECT FROM ` + nodes + ` WHERE worker_id = $1::uuid),
	coalesce((SELECT json_agg(consumer_name) FROM ` + assignments + ` WHERE worker_id = $1::uuid), '[]')::text,`
	return statements{
		clean: `
DELETE FROM ` + nodes + ` WHERE worker_id <> $1::uuid AND heartbeat_at < clock_timestamp() - 2 * $2::bigint * interval '1 microsecond'`,
		register: `
INSERT INTO ` + nodes + ` (worker_id, heartbeat_at, consumers, hostname, pid, protocol)
VALUES ($1::uuid, clock_timestamp(), ARRAY(SELECT jsonb_array_elements_text($2::jsonb)), $3::text, $4::int, $5::int)
ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, updated_at = clock_timestamp(),
	consumers = excluded.consumers, hostname = excluded.hostname, pid = excluded.pid, protocol = excluded.protocol`,
		beat: `
UPDATE ` + nodes + ` SET heartbeat_at = clock_timestamp(), updated_at = clock_timestamp() WHERE worker_id = $1::uuid`,
		follow: seen + ` pg_try_advisory_lock($2::bigint)`,
		lead: seen + `
	` + leads + `,
	coalesce((SELECT json_agg(json_build_object('id', worker_id, 'units', consumers,
		'fresh', heartbeat_at > clock_timestamp() - $3::bigint * interval '1 microsecond')) FROM ` + nodes + `), '[]')::text`,
		assignments: `
SELECT coalesce(json_object_agg(consumer_name, worker_id), '{}')::text FROM ` + assignments,
		// One statement, so one transaction. Rows are locked in order of
		// name, as everyone does who writes them, so nobody waits in a ring.
		assign: `
WITH leader AS MATERIALIZED (
	SELECT WHERE ` + leads + ` AND $1::uuid IS NOT NULL
), written AS (
	INSERT INTO ` + assignments + ` AS a (consumer_name, worker_id)
	SELECT w.unit, w.worker FROM leader, jsonb_to_recordset($3::jsonb) AS w(unit text, worker uuid)
	ORDER BY w.unit COLLATE "C"
	ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id, updated_at = clock_timestamp()
	WHERE a.worker_id <> excluded.worker_id
	RETURNING 1
)
SELECT EXISTS (SELECT FROM leader), (SELECT count(*) FROM written)`,
		leave: `
WITH mine AS MATERIALIZED (
	SELECT consumer_name FROM ` + assignments + ` WHERE worker_id = $1::uuid ORDER BY consumer_name COLLATE "C" FOR UPDATE
), back AS (
	DELETE FROM ` + assignments + ` AS a USING mine WHERE a.consumer_name = mine.consumer_name
), gone AS (
	DELETE FROM ` + nodes + ` WHERE worker_id = $1::uuid
)
SELECT count(*) FROM mine`,
	}
}
