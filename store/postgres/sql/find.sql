-- Selects the events table, its columns, and what alters nondeterministic collations of aggregates.
SELECT n.nspname::text, c.relname::text, c.relpersistence::text, coalesce((
	SELECT string_agg(a.attname, ' ') FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), ''), coalesce((
	SELECT string_agg('ALTER COLUMN ' || quote_ident(a.attname) || ' TYPE ' || format_type(a.atttypid, a.atttypmod) || ' COLLATE "default"', ', ' ORDER BY a.attnum)
	  FROM pg_attribute AS a JOIN pg_collation AS l ON l.oid = a.attcollation
	 WHERE a.attrelid = c.oid AND a.attname IN ('aggregate_type', 'aggregate_id') AND NOT a.attisdropped AND NOT l.collisdeterministic), '')
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = to_regclass($1::text)
