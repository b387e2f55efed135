package coord

import (
	"embed"

	"github.com/pgfrontier/worker/internal/liveness"
	"github.com/pgfrontier/worker/internal/sqltext"
)

//go:embed sql/*.sql
var files embed.FS

var texts = sqltext.Parse(files)

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
	if c.Lease {
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
)` + texts.Statement("assign", sqltext.Names(c, nil))
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
)` + texts.Statement("assign", sqltext.Names(c, nil))
}

// leaderColumns returns the leader's columns: the assignments, if $7 asks for them, and the
// workers' rows as JSON. The rows of the workers in the list $8 come without their details.
func (c Config) leaderColumns() string {
	if !c.assigns() {
		return `
	CASE WHEN $7::boolean IS NULL THEN '' ELSE 'null' END, ` + c.liveness().NodesSQL("$8")
	}
	return "\n	" + texts.Statement("owners", sqltext.Names(c, nil)) + ",\n	" + c.liveness().NodesSQL("$8")
}
