WITH col AS (
	SELECT attrelid, attnum FROM pg_attribute WHERE attrelid = $1::bigint::oid AND quote_ident(attname) = $2::text
), drawn AS (
	SELECT DISTINCT s.oid
	FROM col
	JOIN pg_attrdef AS def ON def.adrelid = col.attrelid AND def.adnum = col.attnum
	JOIN pg_depend AS dep ON dep.classid = 'pg_attrdef'::regclass AND dep.objid = def.oid AND dep.refclassid = 'pg_class'::regclass
	JOIN pg_class AS s ON s.oid = dep.refobjid AND s.relkind = 'S'
), owned AS (
	SELECT s.oid, dep.deptype
	FROM col
	JOIN pg_depend AS dep ON dep.refclassid = 'pg_class'::regclass AND dep.refobjid = col.attrelid AND dep.refobjsubid = col.attnum
		AND dep.classid = 'pg_class'::regclass AND dep.deptype IN ('a', 'i')
	JOIN pg_class AS s ON s.oid = dep.objid AND s.relkind = 'S'
)
SELECT (SELECT min(oid)::bigint FROM drawn), (SELECT count(*)::int FROM drawn), (SELECT oid::bigint FROM owned ORDER BY deptype DESC, oid LIMIT 1)
