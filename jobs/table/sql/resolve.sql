-- Finds a table or view by the names $1 and $2, or one whose name differs from $3 in case only.
SELECT coalesce(max(n.nspname::text), ''), coalesce(max(c.relname::text), ''), coalesce(max(c.relkind::text), ''), coalesce(max(c.relpersistence::text), ''),
	coalesce((SELECT min(other.relname::text) FROM pg_class AS other WHERE lower(other.relname::text) = $3::text AND other.relkind IN ('r', 'p', 'v', 'm', 'f')), '')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = coalesce(to_regclass($1::text), to_regclass($2::text))
