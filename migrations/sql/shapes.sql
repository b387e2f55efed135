-- The shapes of the JSON array $1 whose table exists, and the faults of lacking columns.
WITH shape AS (
	SELECT x.n, x.value->>'table' AS name, c.oid, ARRAY(SELECT json_array_elements_text(x.value->'columns')) AS columns,
		(x.value->>'whole')::boolean AS whole, x.value->'indexes' AS indexes
	FROM json_array_elements($1::text::json) WITH ORDINALITY AS x(value, n)
	JOIN pg_class AS c ON c.oid = to_regclass(x.value->>'table') AND c.relkind IN ('r', 'p')
), indexed AS (
	SELECT s.n, s.oid, s.name, s.whole, i.* FROM shape AS s
	CROSS JOIN LATERAL json_to_recordset(s.indexes) AS i(relation text, "on" text, columns text[], predicate text, "unique" boolean)
), attribute AS (
	SELECT a.attrelid AS oid, a.attnum AS number, a.attname::text AS name, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS wanting
	FROM pg_attribute AS a WHERE a.attrelid IN (SELECT oid FROM shape) AND a.attnum > 0 AND NOT a.attisdropped
), lacking AS (
	SELECT s.n, 1 AS k, s.name || ' has no column ' || string_agg(c.name, ', ' ORDER BY c.k) AS fault
	FROM shape AS s, unnest(s.columns) WITH ORDINALITY AS c(name, k)
	WHERE NOT EXISTS (SELECT FROM attribute AS a WHERE a.oid = s.oid AND a.name = c.name)
	GROUP BY s.n, s.name
)
