-- Takes needs as JSON and returns the GRANTs that the current role lacks. It skips missing tables,
-- columns and sequences.
--
-- nextval needs USAGE or UPDATE on a sequence, but nothing on the sequence of an identity column.
-- So only sequences of defaults count.
--
-- CASE keeps the server from checking a privilege that an object cannot have.
WITH {relations}, lacked AS (
	SELECT r.n, r.whole, need.n AS m, need.privilege || CASE WHEN has_any_column_privilege(r.oid, need.privilege)
		THEN ' (' || string_agg(quote_ident(a.attname), ', ' ORDER BY k.k, a.attnum) || ')' ELSE '' END AS privilege
	FROM need JOIN relation AS r USING (name) CROSS JOIN unnest(need.columns) WITH ORDINALITY AS k(name, k)
	JOIN pg_attribute AS a ON a.attrelid = r.oid AND NOT a.attisdropped AND CASE k.name WHEN '*' THEN a.attnum > 0 ELSE a.attname = (parse_ident(k.name))[1] END
	WHERE CASE WHEN need.columns IS NOT NULL THEN NOT has_column_privilege(r.oid, a.attnum, need.privilege) END
	GROUP BY r.n, r.whole, r.oid, need.n, need.privilege
	UNION ALL
	SELECT r.n, r.whole, need.n, need.privilege
	FROM need JOIN relation AS r USING (name)
	WHERE CASE WHEN need.columns IS NULL AND need.serial IS NULL THEN NOT has_table_privilege(r.oid, need.privilege) END
), drawn AS (
	SELECT need.n, need.privilege, dep.refobjid AS oid, true AS drawn
	FROM need JOIN relation AS r USING (name) JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attname = need.serial
	JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
	JOIN pg_depend AS dep ON dep.classid = 'pg_attrdef'::regclass AND dep.objid = d.oid AND dep.refclassid = 'pg_class'::regclass
	UNION ALL
	SELECT need.n, need.privilege, dep.objid, false
	FROM need JOIN relation AS r USING (name) JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attname = need.serial
	JOIN pg_depend AS dep ON dep.classid = 'pg_class'::regclass AND dep.refclassid = 'pg_class'::regclass
		AND dep.refobjid = a.attrelid AND dep.refobjsubid = a.attnum AND dep.deptype IN ('a', 'i')
	WHERE need.privilege <> 'USAGE'
), sequence AS (
	SELECT DISTINCT ON (d.n, d.drawn) d.n, d.privilege, quote_ident(s.nspname) || '.' || quote_ident(c.relname) AS whole
	FROM drawn AS d JOIN pg_class AS c ON c.oid = d.oid JOIN pg_namespace AS s ON s.oid = c.relnamespace
	WHERE (d.drawn OR NOT EXISTS (SELECT FROM drawn AS o WHERE o.n = d.n AND o.drawn))
		AND CASE WHEN c.relkind = 'S' THEN NOT has_sequence_privilege(c.oid, CASE d.privilege WHEN 'USAGE' THEN 'USAGE, UPDATE' ELSE d.privilege END) END
)
SELECT g.what || ' TO ' || quote_ident(current_user)
FROM (
	SELECT 1 AS kind, min(n) AS n, 'GRANT USAGE ON SCHEMA ' || schema AS what FROM relation WHERE NOT open GROUP BY schema
	UNION ALL
	SELECT 2, n, 'GRANT ' || string_agg(privilege, ', ' ORDER BY m) || ' ON ' || whole FROM lacked GROUP BY n, whole
	UNION ALL
	SELECT 3, n, 'GRANT ' || privilege || ' ON SEQUENCE ' || whole FROM sequence
) AS g
ORDER BY g.kind, g.n
