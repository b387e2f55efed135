package frontier

import (
	"github.com/pgfrontier/worker/internal/changes"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/incarnation"
)

// statements is the SQL of one session. Every read of a log whose sequence is known also
// returns the incarnation and the counter of changes. It returns the identity of table and
// sequence as well. All come from one snapshot. $1 is the database's oid, $2 the table's name.
type statements struct {
	start, insert, place, tail, head, scan, raise string
	token                                         string // token and counter of changes: follows each read of a log whose sequence is not known
}

// holdersAs returns the holders of one scan as JSON. The locks come from one moment of
// pg_locks, the details from pg_stat_activity and pg_prepared_xacts. The query needs a CTE
// "holders" (vx, pid, xid). The locks of a prepared transaction have no pid.
const holdersAs = `
(SELECT coalesce(json_agg(json_build_object(
	'id', h.vx,
	'pid', coalesce(h.pid, 0),
	'rest', CASE
		WHEN h.pid IS NULL THEN 'prepared'
		WHEN a.backend_type = 'client backend' AND a.state IN ('idle in transaction', 'idle in transaction (aborted)') THEN a.state_change::text
		ELSE '' END,
	'state', coalesce(a.state, ''),
	'application', coalesce(a.application_name, ''),
	'gid', coalesce(p.gid, ''),
	'age', coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)), 0)
)), '[]')::text
FROM holders AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
LEFT JOIN pg_prepared_xacts AS p ON h.pid IS NULL AND p.transaction = h.xid`

func (o origin) statements(token, settled, changed ident.Table) statements {
	of := incarnation.Of(token, o.table, o.sequence, `$1::bigint::oid`)
	current := `coalesce(` + of + `, '')`
	s := statements{
		insert: incarnation.InsertToken(token),
		token:  `SELECT ` + current + `, ` + changes.Count(changed),
	}
	if !o.named {
		s.scan = scanEverything
		return s
	}
	const replaced = `coalesce(to_regclass($2::text)::oid::bigint, 0), s.tableoid::bigint, coalesce(pg_relation_filenode(s.tableoid), 0)::bigint`
	common := `SELECT ` + current + `, ` + changes.Count(changed) + `, ` + replaced + `, s.last_value, `
	s.start = common + `coalesce((SELECT settled FROM ` + settled.SQL() + ` WHERE log = $3::bigint), -1) FROM ` + o.sequence + ` AS s`
	s.tail = common + `
coalesce((SELECT string_agg(p::text, ',' ORDER BY p) FROM (
	SELECT ` + o.column + ` AS p FROM ` + o.table + ` WHERE ` + o.column + ` > $3::bigint ORDER BY ` + o.column + ` LIMIT $4::int) AS tail), '')
FROM ` + o.sequence + ` AS s`
	s.head = common + `coalesce((SELECT max(` + o.column + `) FROM ` + o.table + `), 0) FROM ` + o.sequence + ` AS s`
	s.scan = `
WITH locks AS MATERIALIZED (
	SELECT locktype, virtualtransaction AS vx, pid, transactionid AS xid
	FROM pg_locks
	WHERE granted AND (
		locktype = 'relation' AND database = $1::bigint::oid AND relation = $3::bigint::oid AND mode = 'RowExclusiveLock'
		OR locktype = 'transactionid' AND pid IS NULL)
), holders AS (
	SELECT DISTINCT l.vx, l.pid, x.xid
	FROM locks AS l LEFT JOIN locks AS x ON l.pid IS NULL AND x.locktype = 'transactionid' AND x.vx = l.vx
	WHERE l.locktype = 'relation'
)
` + common + `coalesce(row_security_active(to_regclass($2::text)::oid), false), q.seqcache, q.seqincrement, q.seqcycle, q.seqmin, ` + holdersAs + `)
FROM ` + o.sequence + ` AS s JOIN pg_sequence AS q ON q.seqrelid = s.tableoid`
	s.place = `
INSERT INTO ` + settled.SQL() + ` AS t (log, settled) VALUES ($1::bigint, 0)
ON CONFLICT (log) DO UPDATE SET settled = 0, updated_at = clock_timestamp() WHERE t.settled > $2::bigint`
	// SKIP LOCKED: a frontier must not wait for the row. Another frontier that holds the row
	// raises it as well. $1 is the key of the log, $4 the database.
	s.raise = `
UPDATE ` + settled.SQL() + ` SET settled = greatest(settled, $2::bigint), updated_at = clock_timestamp()
WHERE log = (
	SELECT log FROM ` + settled.SQL() + `
	WHERE log = $1::bigint AND settled < $2::bigint AND ` + incarnation.Of(token, o.table, o.sequence, `$4::bigint::oid`) + ` = $3::text
	FOR UPDATE SKIP LOCKED)`
	return s
}

// scanEverything returns every running transaction as a holder. Running transactions have a
// virtualxid lock, prepared transactions only a transactionid lock. Transactions of other
// databases and of autovacuum cannot append, so they are left out.
const scanEverything = `
WITH holders AS MATERIALIZED (
	SELECT DISTINCT virtualtransaction AS vx, pid, transactionid AS xid
	FROM pg_locks
	WHERE granted AND (
		locktype = 'virtualxid' AND pid <> pg_backend_pid()
		OR locktype = 'transactionid' AND pid IS NULL)
)
SELECT ` + holdersAs + `
WHERE coalesce(a.datid = $1::bigint::oid, p.database = current_database(), true)
	AND a.backend_type IS DISTINCT FROM 'autovacuum worker')`
