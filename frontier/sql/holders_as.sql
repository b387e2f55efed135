-- Returns the holders of one scan as JSON. The locks come from one moment of pg_locks, the details
-- from pg_stat_activity and pg_prepared_xacts. The query needs a CTE "holders" (vx, pid, xid). The
-- locks of a prepared transaction have no pid.
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
LEFT JOIN pg_prepared_xacts AS p ON h.pid IS NULL AND p.transaction = h.xid
