-- Reads the columns of a table. A domain counts as its base type. Types of users are
-- qualified, since sessions may have other search paths. The base is compared with constants, so it
-- is read without the quotes of quote_all_identifiers.
SELECT a.attname::text, CASE WHEN n.nspname = 'pg_catalog' THEN format_type(a.atttypid, a.atttypmod) ELSE quote_ident(n.nspname) || '.' || quote_ident(t.typname) END,
	replace(format_type(b.oid, NULL), '"', ''), CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
	a.attnotnull OR t.typnotnull, a.attgenerated <> '' OR a.attidentity = 'a', a.attnum,
	coalesce((SELECT string_agg(e.enumlabel, ',') FROM pg_enum AS e WHERE e.enumtypid = b.oid), '')
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid JOIN pg_namespace AS n ON n.oid = t.typnamespace JOIN pg_type AS b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
WHERE a.attrelid = to_regclass($1::text) AND a.attnum > 0 AND NOT a.attisdropped
