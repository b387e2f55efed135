-- The tables of the needs that exist.
--
-- The search path skips tables in a schema that the role may not use. So the query reads names from
-- the catalog, which every role may read. to_regclass would fail for a name with such a schema.
need AS MATERIALIZED (
	SELECT x.n, x.value->>'table' AS name, parse_ident(x.value->>'table') AS part, x.value->>'privilege' AS privilege,
		CASE WHEN x.value->>'serial' <> '' THEN (parse_ident(x.value->>'serial'))[1] END AS serial,
		CASE WHEN x.value->>'columns' IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(x.value->'columns')) END AS columns
	FROM json_array_elements($1::text::json) WITH ORDINALITY AS x(value, n)
), closed AS (
	SELECT s.oid, p.n
	FROM regexp_split_to_table(current_setting('search_path'), '\s*,\s*') WITH ORDINALITY AS p(name, n)
	JOIN pg_namespace AS s ON s.nspname = CASE btrim(p.name, '"') WHEN '$user' THEN current_user ELSE btrim(p.name, '"') END
	WHERE NOT has_schema_privilege(s.oid, 'USAGE')
), home AS (
	SELECT name, n, oid FROM (SELECT name, part, min(n) AS n FROM need GROUP BY name, part) AS t, LATERAL (
		SELECT CASE WHEN cardinality(part) = 1 THEN coalesce(to_regclass(name)::oid,
				(SELECT c.oid FROM pg_class AS c JOIN closed AS s ON s.oid = c.relnamespace WHERE c.relname = part[1] ORDER BY s.n LIMIT 1))
			ELSE (SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE s.nspname = part[1] AND c.relname = part[2])
			END AS oid) AS found
	WHERE oid IS NOT NULL
), relation AS (
	SELECT h.name, h.n, h.oid, quote_ident(s.nspname) AS schema, quote_ident(s.nspname) || '.' || quote_ident(c.relname) AS whole,
		has_schema_privilege(s.oid, 'USAGE') AS open
	FROM home AS h JOIN pg_class AS c ON c.oid = h.oid JOIN pg_namespace AS s ON s.oid = c.relnamespace
)
