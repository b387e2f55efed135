SELECT coalesce(string_agg(quote_ident(rolname), ', '), '') FROM (
	SELECT rolname FROM pg_roles
	WHERE rolcanlogin AND NOT rolsuper AND NOT pg_has_role(oid, 'USAGE') AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
		AND has_any_column_privilege(oid, to_regclass($1::text)::oid, 'INSERT')
	ORDER BY rolname LIMIT 5) AS r
