package coord

import "github.com/pgfrontier/worker/internal/incarnation"

// statements is the SQL of a session. All but the first take given.
type statements struct {
	resolve, register     string
	follow, lead          string // the look of who does not lead, and of who does
	claim                 string // the lease
	assign                string
	release, leave, clean string
	dead, endSilent       string
}

// given are the parameters that statements share: this worker's id, the key of
// the leader's lock, the name of its lease, HeartbeatTimeout in microseconds.
const given = `
WITH given AS (
	SELECT $1::uuid AS id, $2::bigint AS key, $3::text AS name, $4::bigint * interval '1 microsecond' AS timeout
)`

// sessionLocks are the granted advisory locks of this database with a key of
// 64 bits, which pg_locks shows in two halves.
const sessionLocks = `(
	SELECT pid, mode, (classid::bigint << 32) | objid::bigint AS key
	FROM pg_locks
	WHERE locktype = 'advisory' AND objsubid = 1 AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS held`

// holdsLock is true if the backend that executes it holds the leader's lock,
// which it cannot lose before the statement has ended.
const holdsLock = `EXISTS (SELECT FROM ` + sessionLocks + `, given
	WHERE held.pid = pg_backend_pid() AND held.mode = 'ExclusiveLock' AND held.key = given.key)`

// valid compares a lease with the clock at the moment of evaluation: now()
// would be the start of a transaction that may have waited for the row.
func valid(lease string) string {
	return `(` + lease + `.expires_at > clock_timestamp() AND ` + lease + `.expires_at <= clock_timestamp() + (SELECT timeout FROM given))`
}

func (c Config) statements() statements {
	nodes, assignments, leader := c.Nodes.SQL(), c.Assignments.SQL(), c.Leader.SQL()
	s := statements{
		resolve: `
SELECT n.nspname::text, c.relname::text, pg_backend_pid() FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text)`,
		register: given + `
INSERT INTO ` + nodes + ` (worker_id, heartbeat_at, status, consumers, hostname, pid, build, protocol)
SELECT id, clock_timestamp(), nullif($5::text, '')::jsonb, ARRAY(SELECT jsonb_array_elements_text($6::jsonb)), $7::text, $8::int, $9::text, $10::int FROM given
ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, updated_at = clock_timestamp(),
	status = excluded.status, consumers = excluded.consumers, hostname = excluded.hostname, pid = excluded.pid,
	build = excluded.build, protocol = excluded.protocol`,
		clean: given + `
DELETE FROM ` + nodes + ` WHERE worker_id IN (
	SELECT n.worker_id FROM ` + nodes + ` AS n, given
	WHERE n.worker_id <> given.id AND n.heartbeat_at < clock_timestamp() - 2 * given.timeout
	FOR UPDATE OF n SKIP LOCKED)`,
		// Rows are locked in order of name, as by everyone who writes several,
		// so that no two wait for each other.
		leave: given + `, mine AS MATERIALIZED (
	SELECT consumer_name FROM ` + assignments + ` WHERE worker_id = (SELECT id FROM given)
	ORDER BY consumer_name COLLATE "C" FOR UPDATE
), back AS (
	DELETE FROM ` + assignments + ` AS a USING mine WHERE a.consumer_name = mine.consumer_name
)
DELETE FROM ` + nodes + ` WHERE worker_id = (SELECT id FROM given)`,
		// Before leave and not part of it: the leader locks its lease first
		// and the assignments afterwards.
		release: given + `
UPDATE ` + leader + ` SET worker_id = NULL, expires_at = NULL
WHERE worker_id = (SELECT id FROM given)`,
		dead: given + `
SELECT NOT EXISTS (
	SELECT FROM ` + nodes + ` AS n WHERE n.worker_id = $5::uuid AND ` + fresh + ` AND NOT (
		n.protocol >= $6::int AND n.heartbeat_at < clock_timestamp() - $8::bigint * interval '1 microsecond' AND ` + c.proven() + `
		AND NOT EXISTS (SELECT FROM ` + sessionLocks + ` WHERE held.mode = 'ShareLock' AND held.key = $7::bigint)))`,
	}
	proven := `true`
	if c.Strategy == Advisory {
		proven = c.proven()
	}
	incarnation := `NULL`
	if c.Incarnation != "" {
		incarnation = c.Incarnation
	}
	// A heartbeat, when one is due, is part of the look.
	seen := given + `, beat AS (
	UPDATE ` + nodes + ` SET heartbeat_at = clock_timestamp(), updated_at = clock_timestamp(),
		status = coalesce(nullif($5::text, '')::jsonb, status)
	WHERE $6::boolean AND worker_id = (SELECT id FROM given)
	RETURNING 1
)
SELECT pg_backend_pid(),
	coalesce(CASE WHEN $6::boolean THEN ` + incarnation + ` END, '')::text,
	CASE WHEN $6::boolean THEN EXISTS (SELECT FROM beat) ELSE EXISTS (SELECT FROM ` + nodes + ` WHERE worker_id = (SELECT id FROM given)) END,
	coalesce((SELECT ` + proven + ` FROM ` + nodes + ` AS n WHERE n.worker_id = (SELECT id FROM given)), false),
	coalesce((SELECT json_agg(consumer_name) FROM ` + assignments + ` WHERE worker_id = (SELECT id FROM given)), '[]')::text,`
	if c.Strategy == Lease {
		s.lease(c, seen)
	} else {
		s.advisory(c, seen, proven)
	}
	return s
}

// fresh is true if the last heartbeat of worker n is young enough.
const fresh = `n.heartbeat_at > clock_timestamp() - (SELECT timeout FROM given)`

// proven is true if it was sent in this incarnation of the server.
func (c Config) proven() string { return incarnation.WroteRow(c.Token, "n", "heartbeat_at") }

func (s *statements) advisory(c Config, seen, proven string) {
	s.follow = seen + ` pg_try_advisory_lock((SELECT key FROM given))`
	s.lead = seen + ` ` + holdsLock + `,` + c.everything(proven) + `,
	coalesce((SELECT json_agg(held.key) FROM ` + sessionLocks + ` WHERE held.mode = 'ShareLock'), '[]')::text`
	s.assign = given + `, leader AS MATERIALIZED (
	SELECT 1 WHERE ` + holdsLock + `
)` + assignAs(c.Assignments.SQL())
	s.endSilent = given + `
SELECT pg_terminate_backend(a.pid)
FROM ` + sessionLocks + ` JOIN pg_stat_activity AS a ON a.pid = held.pid, given
WHERE held.mode = 'ExclusiveLock' AND held.key = given.key AND a.state = 'idle' AND a.state_change < clock_timestamp() - given.timeout`
}

func (s *statements) lease(c Config, seen string) {
	leader := c.Leader.SQL()
	const left = `coalesce(CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at - clock_timestamp()) * 1000000 END, 0)::bigint`
	s.follow = seen + `
	coalesce((SELECT json_build_object('holder', worker_id, 'term', term, 'left', ` + left + `) FROM ` + leader + ` WHERE name = (SELECT name FROM given)), '{}')::text`
	s.lead = s.follow + `,` + c.everything(`false`) + `, '[]'`
	renews := `(l.worker_id = excluded.worker_id AND ` + valid("l") + `)`
	s.claim = given + `
INSERT INTO ` + leader + ` AS l (name, worker_id, term, acquired_at, expires_at)
SELECT name, id, 1, clock_timestamp(), clock_timestamp() + timeout FROM given
ON CONFLICT (name) DO UPDATE SET worker_id = excluded.worker_id,
	term = l.term + CASE WHEN ` + renews + ` THEN 0 ELSE 1 END,
	acquired_at = CASE WHEN ` + renews + ` THEN l.acquired_at ELSE clock_timestamp() END,
	expires_at = clock_timestamp() + (SELECT timeout FROM given)
WHERE l.worker_id IS NULL OR l.worker_id = excluded.worker_id OR ` + valid("l") + ` IS NOT TRUE
RETURNING json_build_object('holder', worker_id, 'term', term, 'left', ` + left + `)::text`
	s.assign = given + `, locked AS MATERIALIZED (
	SELECT l.expires_at FROM ` + leader + ` AS l
	WHERE l.name = (SELECT name FROM given) AND l.worker_id = (SELECT id FROM given)
	FOR UPDATE
), leader AS MATERIALIZED (
	SELECT 1 FROM locked WHERE ` + valid("locked") + `
)` + assignAs(c.Assignments.SQL())
}

// everything gathers, for the leader, the assignments if $7 asks for them, and
// the workers' rows as JSON. A worker that leaves deletes its assignments, so a
// checkpoint without one shows a consumer that nobody runs. The units of the
// workers in the list $8 are left out: they are many, never change, and the
// leader knows them. The worker that asks is alive: its heartbeat may be in this
// very statement.
func (c Config) everything(proven string) string {
	nodes, assignments := c.Nodes.SQL(), c.Assignments.SQL()
	return `
	CASE WHEN $7::boolean THEN (SELECT coalesce(json_object_agg(consumer_name, worker_id), '{}')::text FROM (
		SELECT consumer_name, worker_id FROM ` + assignments + `
		UNION ALL
		SELECT consumer_name, NULL FROM ` + c.Checkpoints.SQL() + ` AS c
		WHERE paused_at IS NULL AND NOT EXISTS (SELECT FROM ` + assignments + ` AS a WHERE a.consumer_name = c.consumer_name)
	) AS units) ELSE 'null' END,
	coalesce((SELECT json_agg(json_build_object('id', n.worker_id, 'protocol', n.protocol,
		'units', CASE WHEN n.worker_id <> ALL (ARRAY(SELECT jsonb_array_elements_text($8::jsonb)::uuid)) THEN n.consumers END,
		'fresh', n.worker_id = (SELECT id FROM given) OR ` + fresh + `,
		'proven', ` + proven + `)) FROM ` + nodes + ` AS n), '[]')::text`
}

// assignAs writes if the CTE leader has a row, and tells how many rows it has
// written. One statement is one transaction, so nothing comes between the proof
// and the rows. A row that somebody holds is left out: a process of another
// library keeps the row of a consumer for as long as a batch lasts, and the
// other consumers must not wait for it. A row may have no worker.
func assignAs(assignments string) string {
	return `, wanted AS MATERIALIZED (
	SELECT w.unit, w.worker FROM leader, jsonb_to_recordset($5::jsonb) AS w(unit text, worker uuid)
), free AS MATERIALIZED (
	SELECT a.consumer_name FROM ` + assignments + ` AS a JOIN wanted AS w ON w.unit = a.consumer_name
	ORDER BY a.consumer_name COLLATE "C" FOR UPDATE OF a SKIP LOCKED
), written AS (
	INSERT INTO ` + assignments + ` AS a (consumer_name, worker_id)
	SELECT w.unit, w.worker FROM wanted AS w
	WHERE w.unit IN (SELECT consumer_name FROM free) OR NOT EXISTS (SELECT FROM ` + assignments + ` AS a WHERE a.consumer_name = w.unit)
	ORDER BY w.unit COLLATE "C"
	ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id, updated_at = clock_timestamp()
	WHERE a.worker_id IS DISTINCT FROM excluded.worker_id
	RETURNING 1
)
SELECT EXISTS (SELECT FROM leader), (SELECT count(*) FROM written)`
}
