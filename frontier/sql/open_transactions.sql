-- Returns the transactions that hold the lock of the sequence. nextval takes the lock until the end
-- of its transaction. The server shows locks, sessions and prepared transactions at different
-- moments. A holder that pg_stat_activity and pg_prepared_xacts do not show has ended. A session
-- without a transaction has just begun or ended. A session that hides its activity shows no
-- backend_type. A session with track_activities off never shows a transaction.
WITH locks AS MATERIALIZED (
	SELECT locktype, virtualtransaction AS vx, pid, transactionid AS xid
	FROM pg_locks
	WHERE granted AND (
		locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = $1::bigint::oid AND mode = 'RowExclusiveLock'
		OR locktype = 'transactionid' AND pid IS NULL)
), holders AS (
	SELECT DISTINCT l.vx, l.pid, x.xid
	FROM locks AS l LEFT JOIN locks AS x ON l.pid IS NULL AND x.locktype = 'transactionid' AND x.vx = l.vx
	WHERE l.locktype = 'relation'
)
SELECT coalesce(h.pid, 0), coalesce(p.gid, ''), coalesce(a.usename, p.owner, '')::text, coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''),
	CASE WHEN h.pid IS NULL THEN 'prepared' ELSE coalesce(a.state, '') END,
	greatest(coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) * 1000000, 0), 0)::bigint,
	greatest(coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.state_change, p.prepared)) * 1000000, 0), 0)::bigint,
	a.backend_start, coalesce(a.xact_start, p.prepared), CASE WHEN $2::boolean THEN coalesce(a.query, '') ELSE '' END
FROM holders AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
LEFT JOIN pg_prepared_xacts AS p ON h.pid IS NULL AND p.transaction = h.xid
WHERE CASE WHEN h.pid IS NULL THEN p.gid IS NOT NULL
	ELSE a.pid IS NOT NULL AND (a.backend_type IS NULL OR a.state = 'disabled' OR a.xact_start IS NOT NULL) END
ORDER BY coalesce(a.xact_start, p.prepared) NULLS FIRST, h.pid
