SELECT c.oid::bigint, quote_ident(n.nspname) || '.' || quote_ident(c.relname), row_security_active(c.oid),
	quote_ident(a.attname), coalesce(has_column_privilege(c.oid, a.attnum, 'SELECT'), false)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = (parse_ident($2::text))[1]
WHERE c.oid = to_regclass($1::text)
