package liveness

import (
	"fmt"

	"github.com/pgfrontier/worker/internal/incarnation"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// statements is the SQL of a Registry. Every statement but resolve and setBack takes the
// parameters of givenCTE.
type statements struct{ resolve, register, clean, setBack, dead string }

// givenCTE holds the shared parameters: this worker's id, and its HeartbeatTimeout in
// microseconds for rows without a timeout. A statement of another package that uses the
// fragments below has a CTE of this name with these columns.
const givenCTE = `
WITH given AS (
	SELECT $1::uuid AS id, $2::bigint * interval '1 microsecond' AS timeout
)`

// SessionLocks selects the granted advisory locks of this database with 64-bit keys, which
// pg_locks shows in two halves.
const SessionLocks = `(
	SELECT pid, mode, (classid::bigint << 32) | objid::bigint AS key
	FROM pg_locks
	WHERE locktype = 'advisory' AND objsubid = 1 AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS held`

// RecentSQL returns an SQL condition: a worker stopped at most 15 minutes ago. A time more
// than 15 minutes in the future is not recent: the server's clock was set back since.
func RecentSQL(stopped string) string {
	return stopped + ` BETWEEN clock_timestamp() - interval '15 minutes' AND clock_timestamp() + interval '15 minutes'`
}

// RemoveSQL returns the end of a statement, beginning with a CTE, that deletes the rows of
// workers. It records in Stopped how they stopped, and which worker declared them dead. The
// arguments are SQL. how may refer to the deleted row as g.
func (c Config) RemoveSQL(which, how, by string) string {
	return `gone AS (
	DELETE FROM ` + c.Nodes.SQL() + ` WHERE ` + which + `
	RETURNING worker_id, hostname, pid, build, created_at, drain_requested_at
)
INSERT INTO ` + c.Stopped.SQL() + ` (worker_id, stopped_at, how, declared_by, hostname, pid, build, started_at)
SELECT g.worker_id, clock_timestamp(), ` + how + `, ` + by + `, g.hostname, g.pid, g.build, g.created_at FROM gone AS g
ON CONFLICT DO NOTHING`
}

// HeldSQL is an SQL expression for the keys of the held locks of workers, as JSON, for
// [Session.Complete].
const HeldSQL = `coalesce((SELECT json_agg(held.key) FROM ` + SessionLocks + ` WHERE held.mode = 'ShareLock'), '[]')::text`

// BeatSQL returns a CTE "beat" that sends a heartbeat if due is true. due and status are
// parameters, such as "$6". An empty status keeps the previous status.
func (c Config) BeatSQL(due, status string) string {
	return `beat AS (
	UPDATE ` + c.Nodes.SQL() + ` SET heartbeat_at = clock_timestamp(), updated_at = clock_timestamp(),
		status = coalesce(nullif(` + status + `::text, '')::jsonb, status)
	WHERE ` + due + `::boolean AND worker_id = (SELECT id FROM given)
	RETURNING 1
)`
}

// drain is true if an operator has asked worker n to drain.
const drain = `n.drain_requested_at IS NOT NULL`

// SelfSQL returns the columns of [Self], for a statement with the CTE of [Config.BeatSQL].
func (c Config) SelfSQL(due string) string {
	nodes, current, proven := c.Nodes.SQL(), `NULL`, `true`
	if c.Incarnation != "" {
		current = c.Incarnation
	}
	if c.Lock {
		proven = c.proven()
	}
	proven += ` AND NOT ` + ahead
	return `pg_backend_pid(),
	coalesce(CASE WHEN ` + due + `::boolean THEN ` + current + ` END, '')::text,
	CASE WHEN ` + due + `::boolean THEN EXISTS (SELECT FROM beat) ELSE EXISTS (SELECT FROM ` + nodes + ` WHERE worker_id = (SELECT id FROM given)) END,
	coalesce((SELECT ` + proven + ` FROM ` + nodes + ` AS n WHERE n.worker_id = (SELECT id FROM given)), false),
	coalesce((SELECT ` + drain + ` FROM ` + nodes + ` AS n WHERE n.worker_id = (SELECT id FROM given)), false)`
}

// NodesSQL returns an SQL expression for the rows of all workers, as JSON. It leaves out the
// names and details of the workers in the list known, a parameter. They are large and never
// change, and the asking worker has them. The asking worker counts as alive, since its
// heartbeat may be part of the same statement.
func (c Config) NodesSQL(known string) string {
	proven, details := `false`, ``
	if c.Lock {
		proven = c.proven()
	}
	unknown := `CASE WHEN n.worker_id <> ALL (ARRAY(SELECT jsonb_array_elements_text(` + known + `::jsonb)::uuid)) THEN n.`
	if c.DetailsColumn != "" {
		details = `
		'draining', n.draining OR ` + drain + `, 'details', ` + unknown + c.DetailsColumn + ` END,`
	}
	return `coalesce((SELECT json_agg(json_build_object('id', n.worker_id, 'protocol', n.protocol,
		'names', ` + unknown + c.Column + ` END,` + details + `
		'fresh', n.worker_id = (SELECT id FROM given) OR ` + fresh + `,
		'ahead', CASE WHEN n.worker_id <> (SELECT id FROM given) AND ` + ahead + ` THEN n.heartbeat_at::text ELSE '' END,
		'timeout', (extract(epoch FROM ` + TimeoutSQL("n", "(SELECT timeout FROM given)") + `) * 1000000)::bigint,
		'proven', ` + proven + `)) FROM ` + c.Nodes.SQL() + ` AS n), '[]')::text`
}

// TimeoutSQL returns an SQL expression for the HeartbeatTimeout of a worker whose row has the
// alias row. otherwise is for a row of an earlier build, which has no timeout. A timeout above
// one day was written by hand, and counts as one day.
func TimeoutSQL(row, otherwise string) string {
	of := row + `.heartbeat_timeout`
	return `coalesce(CASE WHEN ` + of + ` <= interval '1 day' THEN ` + of + ` WHEN ` + of + ` IS NOT NULL THEN interval '1 day' END, ` + otherwise + `)`
}

// AgeSQL returns an SQL expression for the age of a worker's heartbeat in microseconds, for
// display. A negative age means that the heartbeat lies in the future.
func AgeSQL(row string) string {
	return `CASE WHEN ` + row + `.heartbeat_at > clock_timestamp()
		THEN least((extract(epoch FROM clock_timestamp() - least(` + row + `.heartbeat_at, clock_timestamp() + interval '36500 days')) * 1000000)::bigint, -1)
		ELSE ` + pgdriver.Age(row+`.heartbeat_at`) + ` END`
}

// fresh is true if the last heartbeat of worker n is not older than its HeartbeatTimeout.
var fresh = `n.heartbeat_at > clock_timestamp() - ` + TimeoutSQL("n", "(SELECT timeout FROM given)")

// ahead is true if the last heartbeat of worker n lies in the future. The server's clock was
// then set back.
const ahead = `n.heartbeat_at > clock_timestamp()`

// grace returns an SQL expression for the [Config.Grace] of worker n. If the row of n has no
// timeout, it is the Grace of c.
func (c Config) grace() string {
	return fmt.Sprintf(`CASE WHEN n.heartbeat_interval + n.heartbeat_timeout IS NULL THEN %d * interval '1 microsecond'
			ELSE least(n.heartbeat_interval + least(greatest(n.heartbeat_timeout / 3, interval '1 second'), interval '10 seconds'), n.heartbeat_timeout) END`, c.Grace().Microseconds())
}

// proven returns an SQL condition: the heartbeat was sent in the current incarnation of the
// server.
func (c Config) proven() string { return incarnation.WroteRow(c.Token, "n", "heartbeat_at") }

func (c Config) statements() statements {
	nodes := c.Nodes.SQL()
	var column, value, set string
	if c.DetailsColumn != "" {
		column, value, set = `, `+c.DetailsColumn, `, $10::jsonb`, `, `+c.DetailsColumn+` = excluded.`+c.DetailsColumn
	}
	return statements{
		resolve: `
SELECT n.nspname::text, c.relname::text, pg_backend_pid() FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text)`,
		register: givenCTE + `
INSERT INTO ` + nodes + ` (worker_id, heartbeat_at, status, ` + c.Column + `, hostname, pid, build, protocol, heartbeat_interval, heartbeat_timeout` + column + `)
SELECT id, clock_timestamp(), nullif($3::text, '')::jsonb, ARRAY(SELECT jsonb_array_elements_text($4::jsonb)), $5::text, $6::int, $7::text, $8::int,
	$9::bigint * interval '1 microsecond', timeout` + value + ` FROM given
ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, updated_at = clock_timestamp(),
	status = excluded.status, ` + c.Column + ` = excluded.` + c.Column + `, hostname = excluded.hostname, pid = excluded.pid,
	build = excluded.build, protocol = excluded.protocol, heartbeat_interval = excluded.heartbeat_interval, heartbeat_timeout = excluded.heartbeat_timeout` + set,
		clean: givenCTE + `, forgotten AS (
	DELETE FROM ` + c.Stopped.SQL() + ` WHERE (worker_id, stopped_at) IN (
		SELECT s.worker_id, s.stopped_at FROM ` + c.Stopped.SQL() + ` AS s WHERE NOT (` + RecentSQL("s.stopped_at") + `)
		FOR UPDATE OF s SKIP LOCKED)
), ` + c.RemoveSQL(`worker_id IN (
		SELECT n.worker_id FROM `+nodes+` AS n, given
		WHERE n.worker_id <> given.id AND n.heartbeat_at < clock_timestamp() - 2 * `+TimeoutSQL("n", "given.timeout")+`
		FOR UPDATE OF n SKIP LOCKED)`, `'dead'`, `(SELECT id FROM given)`),
		setBack: `
UPDATE ` + nodes + ` AS n SET heartbeat_at = '-infinity' FROM jsonb_to_recordset($1::jsonb) AS a(id uuid, at text)
WHERE n.worker_id = a.id AND n.heartbeat_at::text = a.at AND ` + ahead,
		dead: givenCTE + `, ` + c.dead() + `
SELECT EXISTS (SELECT FROM dead)`,
	}
}

// dead returns a CTE "dead" with the dead workers among the list $3. A worker in the list has
// an id and the key of its lock. $5 is the grace in microseconds. Below 0, the grace is each
// worker's own.
func (c Config) dead() string {
	return `dead AS MATERIALIZED (
	SELECT d.id AS worker_id FROM jsonb_to_recordset($3::jsonb) AS d(id uuid, key bigint)
	WHERE NOT EXISTS (
		SELECT FROM ` + c.Nodes.SQL() + ` AS n WHERE n.worker_id = d.id AND ` + fresh + ` AND NOT (
			n.protocol >= $4::int AND n.heartbeat_at < clock_timestamp() - CASE WHEN $5::bigint < 0 THEN ` + c.grace() + ` ELSE $5::bigint * interval '1 microsecond' END
			AND ` + c.proven() + `
			AND NOT EXISTS (SELECT FROM ` + SessionLocks + ` WHERE held.mode = 'ShareLock' AND held.key = d.key)))
)`
}
