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
{common}
	coalesce(row_security_active(to_regclass($2::text)::oid), false), q.seqcache, q.seqincrement, q.seqcycle, q.seqmin, {holders_as})
FROM {sequence} AS s JOIN pg_sequence AS q ON q.seqrelid = s.tableoid
