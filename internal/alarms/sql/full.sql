SELECT what, name, used, most FROM (
	SELECT 'role' AS what, r.rolname::text AS name, (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid = r.oid) AS used, r.rolconnlimit AS most
	FROM pg_roles AS r WHERE r.rolconnlimit >= 0 AND r.rolcanlogin AND NOT r.rolsuper AND ({may_write 1} OR {may_write 2})
	UNION ALL SELECT 'database', datname::text, (SELECT count(*) FROM pg_stat_activity AS a WHERE a.datid = d.oid AND coalesce(a.backend_type, 'client backend') = 'client backend'), datconnlimit
	FROM pg_database AS d WHERE datname = current_database() AND datconnlimit >= 0
	UNION ALL SELECT 'the server', '', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'),
		current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- coalesce(current_setting('reserved_connections', true)::int, 0) -- PostgreSQL 16 and later
) AS limits WHERE used >= most ORDER BY what, name LIMIT 1
