package coord

import "github.com/pgfrontier/worker/internal/liveness"

// statements is the SQL of a session. Every statement takes the parameters of givenCTE.
type statements struct {
	follow, lead   string // the poll of a follower, and of the leader
	claim          string // claims the lease
	assign         string
	release, leave string
	drain          string
	endSilent      string
}

// givenCTE holds the shared parameters: this worker's id, the key of the leader's lock, the
// name of its lease, and HeartbeatTimeout in microseconds.
const givenCTE = `
WITH given AS (
	SELECT $1::uuid AS id, $2::bigint AS key, $3::text AS name, $4::bigint * interval '1 microsecond' AS timeout
)`

// holdsLock is true if the backend that executes it holds the leader's lock. The backend
// cannot lose the lock before the statement ends.
const holdsLock = `EXISTS (SELECT FROM ` + liveness.SessionLocks + `, given
	WHERE held.pid = pg_backend_pid() AND held.mode = 'ExclusiveLock' AND held.key = given.key)`

// valid compares a lease with the clock at the time of evaluation. now() would be the start of
// a transaction that may have waited for the row.
func (c Config) valid(lease string) string {
	return `(` + lease + `.expires_at > clock_timestamp() AND ` + lease + `.expires_at <= clock_timestamp() + ` + c.most(lease) + `)`
}

// most returns an SQL expression for the duration of a lease: the HeartbeatTimeout of its
// holder.
func (c Config) most(lease string) string {
	return `coalesce((SELECT ` + liveness.TimeoutSQL("n", "NULL") + ` FROM ` + c.Nodes.SQL() + ` AS n WHERE n.worker_id = ` + lease + `.worker_id), (SELECT timeout FROM given))`
}

func (c Config) statements() statements {
	nodes, leader := c.Nodes.SQL(), c.Leader.SQL()
	s := statements{
		drain: givenCTE + c.releaseUnits(`AND consumer_name <> ALL (ARRAY(SELECT jsonb_array_elements_text($5::jsonb)))`) + `
UPDATE ` + nodes + ` SET draining = true, updated_at = clock_timestamp() WHERE worker_id = (SELECT id FROM given)`,
		leave: givenCTE + c.releaseUnits(``) + `, ` + c.liveness().RemoveSQL(`worker_id = (SELECT id FROM given)`,
			`CASE WHEN $5::boolean THEN 'failed' WHEN g.drain_requested_at IS NOT NULL THEN 'drained' ELSE 'stopped' END`, `NULL`),
		// A statement of its own before leave: the leader, too, locks its lease before the
		// assignments.
		release: givenCTE + `
UPDATE ` + leader + ` SET worker_id = NULL, expires_at = NULL
WHERE worker_id = (SELECT id FROM given)`,
	}
	// A due heartbeat is part of the poll.
	alive := c.liveness()
	seen := givenCTE + `, ` + alive.BeatSQL("$6", "$5") + `
SELECT ` + alive.SelfSQL("$6") + `,
	` + c.mine() + `,`
	if c.Strategy == Lease {
		s.lease(c, seen)
	} else {
		s.advisory(c, seen)
	}
	return s
}

// releaseUnits returns CTEs that delete this worker's assignments for which the condition
// holds. Every statement that writes several rows locks them in order of name, so no two
// statements wait for each other.
func (c Config) releaseUnits(condition string) string {
	if !c.assigns() {
		return ``
	}
	assignments := c.Assignments.SQL()
	return `, mine AS MATERIALIZED (
	SELECT consumer_name FROM ` + assignments + ` WHERE worker_id = (SELECT id FROM given) ` + condition + `
	ORDER BY consumer_name COLLATE "C" FOR UPDATE
), back AS (
	DELETE FROM ` + assignments + ` AS a USING mine WHERE a.consumer_name = mine.consumer_name
)`
}

// mine returns an SQL expression for this worker's assigned units, as JSON, each with the
// number of wanted partitions.
func (c Config) mine() string {
	if !c.assigns() {
		return `'{}'`
	}
	return `coalesce((SELECT json_object_agg(consumer_name, coalesce(partitions, 0)) FROM ` + c.Assignments.SQL() + ` WHERE worker_id = (SELECT id FROM given)), '{}')::text`
}

func (s *statements) advisory(c Config, seen string) {
	s.follow = seen + ` pg_try_advisory_lock((SELECT key FROM given))`
	s.lead = seen + ` ` + holdsLock + `,` + c.leaderColumns() + `, ` + liveness.HeldSQL
	s.assign = givenCTE + `, leader AS MATERIALIZED (
	SELECT 1 WHERE ` + holdsLock + `
)` + c.assignAs()
	s.endSilent = givenCTE + `
SELECT pg_terminate_backend(a.pid)
FROM ` + liveness.SessionLocks + ` JOIN pg_stat_activity AS a ON a.pid = held.pid, given
WHERE held.mode = 'ExclusiveLock' AND held.key = given.key AND a.state = 'idle' AND a.state_change < clock_timestamp() - given.timeout`
}

func (s *statements) lease(c Config, seen string) {
	leader := c.Leader.SQL()
	left := `coalesce(CASE WHEN isfinite(expires_at) THEN extract(epoch FROM expires_at - clock_timestamp()) * 1000000 END, 0)::bigint, 'most', (extract(epoch FROM ` + c.most("l") + `) * 1000000)::bigint`
	s.follow = seen + `
	coalesce((SELECT json_build_object('holder', worker_id, 'term', term, 'left', ` + left + `) FROM ` + leader + ` AS l WHERE name = (SELECT name FROM given)), '{}')::text`
	s.lead = s.follow + `,` + c.leaderColumns() + `, '[]'`
	renews := `(l.worker_id = excluded.worker_id AND ` + c.valid("l") + `)`
	s.claim = givenCTE + `
INSERT INTO ` + leader + ` AS l (name, worker_id, term, acquired_at, expires_at)
SELECT name, id, 1, clock_timestamp(), clock_timestamp() + timeout FROM given
ON CONFLICT (name) DO UPDATE SET worker_id = excluded.worker_id,
	term = l.term + CASE WHEN ` + renews + ` THEN 0 ELSE 1 END,
	acquired_at = CASE WHEN ` + renews + ` THEN l.acquired_at ELSE clock_timestamp() END,
	expires_at = clock_timestamp() + (SELECT timeout FROM given)
WHERE l.worker_id IS NULL OR l.worker_id = excluded.worker_id OR ` + c.valid("l") + ` IS NOT TRUE
RETURNING json_build_object('holder', worker_id, 'term', term, 'left', ` + left + `)::text`
	s.assign = givenCTE + `, locked AS MATERIALIZED (
	SELECT l.worker_id, l.expires_at FROM ` + leader + ` AS l
	WHERE l.name = (SELECT name FROM given) AND l.worker_id = (SELECT id FROM given)
	FOR UPDATE
), leader AS MATERIALIZED (
	SELECT 1 FROM locked WHERE ` + c.valid("locked") + `
)` + c.assignAs()
}

// leaderColumns returns the leader's columns: the assignments, if $7 asks for them, and the
// workers' rows as JSON. The rows of the workers in the list $8 come without their details. A
// worker that leaves deletes its assignments. So a checkpoint without an assignment is of a
// unit that no worker runs.
func (c Config) leaderColumns() string {
	if !c.assigns() {
		return `
	CASE WHEN $7::boolean IS NULL THEN '' ELSE 'null' END, ` + c.liveness().NodesSQL("$8")
	}
	assignments, checkpoints := c.Assignments.SQL(), c.Checkpoints.SQL()
	return `
	CASE WHEN $7::boolean THEN json_build_object('owners', (SELECT coalesce(json_object_agg(consumer_name, worker_id), '{}') FROM (
		SELECT consumer_name, worker_id FROM ` + assignments + `
		UNION ALL
		SELECT consumer_name, NULL FROM ` + checkpoints + ` AS c
		WHERE paused_at IS NULL AND NOT EXISTS (SELECT FROM ` + assignments + ` AS a WHERE a.consumer_name = c.consumer_name)
	) AS units), 'wanted', (
		SELECT json_object_agg(consumer_name, partitions) FROM ` + assignments + ` WHERE partitions IS NOT NULL
	), 'parts', (
		SELECT json_agg(json_build_object('unit', consumer_name, 'key', partition_key, 'split', split_at IS NOT NULL, 'fixed', coalesce(partitions, 0)))
		FROM ` + checkpoints + ` WHERE split_at IS NOT NULL OR partitions IS NOT NULL OR strpos(consumer_name, '#') > 0
	))::text ELSE 'null' END,
	` + c.liveness().NodesSQL("$8")
}

// assignAs writes assignments if the CTE leader has a row. It returns whether it has, and the
// number of written rows. One statement is one transaction, so nothing comes between the proof
// and the writes. A row that another transaction holds is skipped. A process of another
// library locks the row of a consumer for as long as a batch lasts. The other consumers must
// not wait for that batch. A row may have no worker.
//
// The rows of units in gone are deleted, unless such a unit exists again. If the unit
// reappears during the statement, the next poll finds it without a row.
func (c Config) assignAs() string {
	assignments := c.Assignments.SQL()
	return `, wanted AS MATERIALIZED (
	SELECT w.unit, w.worker, w.partitions FROM leader, jsonb_to_recordset($5::jsonb) AS w(unit text, worker uuid, partitions int)
), free AS MATERIALIZED (
	SELECT a.consumer_name, w.unit IS NULL AS gone FROM ` + assignments + ` AS a LEFT JOIN wanted AS w ON w.unit = a.consumer_name
	WHERE w.unit IS NOT NULL OR a.consumer_name IN (SELECT g.unit FROM leader, jsonb_array_elements_text($6::jsonb) AS g(unit))
	ORDER BY a.consumer_name COLLATE "C" FOR UPDATE OF a SKIP LOCKED
), written AS (
	INSERT INTO ` + assignments + ` AS a (consumer_name, worker_id, partitions)
	SELECT w.unit, w.worker, w.partitions FROM wanted AS w
	WHERE w.unit IN (SELECT consumer_name FROM free) OR NOT EXISTS (SELECT FROM ` + assignments + ` AS a WHERE a.consumer_name = w.unit)
	ORDER BY w.unit COLLATE "C"
	ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id, partitions = excluded.partitions, updated_at = clock_timestamp()
	WHERE a.worker_id IS DISTINCT FROM excluded.worker_id OR a.partitions IS DISTINCT FROM excluded.partitions
	RETURNING 1
), deleted AS (
	DELETE FROM ` + assignments + ` AS a USING free
	WHERE free.gone AND a.consumer_name = free.consumer_name
		AND NOT EXISTS (SELECT FROM ` + c.Checkpoints.SQL() + ` AS c WHERE c.consumer_name = a.consumer_name AND c.split_at IS NULL)
	RETURNING 1
)
SELECT EXISTS (SELECT FROM leader), (SELECT count(*) FROM written) + (SELECT count(*) FROM deleted)`
}
