-- Takes needs as JSON. It returns a remedy for the library's tables whose row-level security
-- applies to the current role. It also returns a remedy for each such table of a user without a
-- policy for the role. It skips missing tables.
--
-- For the library's tables, a policy is not enough, since its expression does not show which rows
-- it hides.
WITH need AS MATERIALIZED (
	SELECT x.n, x.value->>'table' AS name, parse_ident(x.value->>'table') AS part, x.value->>'privilege' AS privilege,
		coalesce((x.value->>'policies')::boolean, false) AS policies
	FROM json_array_elements($1::text::json) WITH ORDINALITY AS x(value, n)
), relation AS (
	SELECT need.n, need.privilege, need.policies, c.oid, c.relowner, quote_ident(s.nspname) || '.' || quote_ident(c.relname) AS whole
	FROM need JOIN pg_class AS c ON c.oid = CASE WHEN cardinality(part) = 1 THEN to_regclass(name)::oid ELSE (
		SELECT t.oid FROM pg_class AS t JOIN pg_namespace AS s ON s.oid = t.relnamespace WHERE s.nspname = part[1] AND t.relname = part[2]) END
	JOIN pg_namespace AS s ON s.oid = c.relnamespace
	WHERE row_security_active(c.oid)
), refused AS (
	SELECT whole, relowner, bool_or(NOT policies) AS own, min(n) AS n, string_agg(DISTINCT privilege, ', ') AS privileges
	FROM relation AS r
	WHERE NOT policies OR NOT EXISTS (
		SELECT FROM pg_policy AS p
		WHERE p.polrelid = r.oid AND p.polpermissive
			AND p.polcmd IN ('*', CASE r.privilege WHEN 'SELECT' THEN 'r' WHEN 'INSERT' THEN 'a' WHEN 'UPDATE' THEN 'w' ELSE 'd' END)
			AND EXISTS (SELECT FROM unnest(p.polroles) AS of(role) WHERE CASE WHEN role = 0 THEN true ELSE pg_has_role(role, 'USAGE') END))
	GROUP BY whole, relowner
), remedy AS (
	SELECT own, n, whole, privileges,
		'ALTER TABLE ' || whole || CASE WHEN pg_has_role(relowner, 'USAGE') THEN ' NO FORCE' ELSE ' DISABLE' END || ' ROW LEVEL SECURITY' AS alter
	FROM refused
), me AS (SELECT quote_ident(current_user) AS role)
SELECT said FROM (
	SELECT 0 AS n, 'row-level security hides rows from role ' || role || ': ALTER ROLE ' || role || ' BYPASSRLS, or make the role the owner, or '
		|| string_agg(alter, '; ' ORDER BY n) AS said
	FROM remedy, me WHERE own GROUP BY role
	UNION ALL
	SELECT n, 'row-level security of ' || whole || ' hides all rows, as no policy lets role ' || role || ' ' || privileges
		|| ': CREATE POLICY ... ON ' || whole || ', or ALTER ROLE ' || role || ' BYPASSRLS, or ' || alter
	FROM remedy, me WHERE NOT own
) AS all_said
ORDER BY n
