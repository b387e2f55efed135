-- Returns every running transaction as a holder. Running transactions have a virtualxid lock,
-- prepared transactions only a transactionid lock. Transactions of other databases and of
-- autovacuum cannot append, so they are left out.
WITH holders AS MATERIALIZED (
	SELECT DISTINCT virtualtransaction AS vx, pid, transactionid AS xid
	FROM pg_locks
	WHERE granted AND (
		locktype = 'virtualxid' AND pid <> pg_backend_pid()
		OR locktype = 'transactionid' AND pid IS NULL)
)
SELECT {holders_as}
WHERE coalesce(a.datid = $1::bigint::oid, p.database = current_database(), true)
	AND a.backend_type IS DISTINCT FROM 'autovacuum worker')
