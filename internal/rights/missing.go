package rights

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/refusal"
	"github.com/pgfrontier/worker/store"
)

// missing takes needs as JSON and returns the GRANTs that the current role lacks. It skips
// missing tables, columns and sequences.
//
// The search path skips tables in a schema that the role may not use. So the query reads names
// from the catalog, which every role may read. to_regclass would fail for a name with such a
// schema.
//
// nextval needs USAGE or UPDATE on a sequence, but nothing on the sequence of an identity
// column. So only sequences of defaults count.
//
// CASE keeps the server from checking a privilege that an object cannot have.
const missing = `
WITH need AS MATERIALIZED (
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
), lacked AS (
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
ORDER BY g.kind, g.n`

// hidden takes needs as JSON. It returns a remedy for the library's tables whose row-level
// security applies to the current role. It also returns a remedy for each such table of a user
// without a policy for the role. It skips missing tables.
//
// For the library's tables, a policy is not enough, since its expression does not show which
// rows it hides.
const hidden = `
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
ORDER BY n`

// Missing returns remedies for the missing needs of q's role: GRANTs, and statements that let
// the role see all rows. A superuser lacks nothing.
func Missing(ctx context.Context, q store.Querier, needs []Need) (remedies []string, err error) {
	var super bool
	if err := q.QueryRowContext(ctx, `SELECT rolsuper FROM pg_roles WHERE rolname = current_user`).Scan(&super); err != nil {
		return nil, fmt.Errorf("read the privileges: %w", err)
	}
	if super {
		return nil, nil
	}
	for _, statement := range []string{missing, hidden} {
		more, err := queryNeeds(ctx, q, statement, needs)
		if err != nil {
			return nil, fmt.Errorf("read the privileges: %w", err)
		}
		remedies = append(remedies, more...)
	}
	return remedies, nil
}

// Check returns [refusal.ErrPrivileges] with the remedies of [Missing], and with others. hint
// stands before the remedies.
func Check(ctx context.Context, q store.Querier, hint string, needs []Need, others ...string) error {
	remedies, err := Missing(ctx, q, needs)
	if remedies = append(remedies, others...); err == nil && len(remedies) > 0 {
		err = fmt.Errorf("%w%s: %s", refusal.ErrPrivileges, hint, strings.Join(remedies, "; "))
	}
	return err
}

// Hidden returns the remedy that lets the role of q's session see all rows of the tables. It is
// empty if the role sees them. A missing table counts as seen.
func Hidden(ctx context.Context, q store.Querier, tables ...ident.Table) (remedy string, err error) {
	needs := make([]Need, len(tables))
	for i, t := range tables {
		needs[i] = Need{Table: t.SQL(), Privilege: "SELECT"}
	}
	all, err := queryNeeds(ctx, q, hidden, needs)
	if err != nil {
		return "", fmt.Errorf("read the row-level security: %w", err)
	}
	return strings.Join(all, "; "), nil
}

func queryNeeds(ctx context.Context, q store.Querier, statement string, needs []Need) ([]string, error) {
	list, err := json.Marshal(needs)
	if err != nil {
		return nil, err
	}
	return pgdriver.QueryAll(ctx, q, func(rows *sql.Rows) (text string, err error) {
		err = rows.Scan(&text)
		return text, err
	}, statement, string(list))
}

// HiddenAppenders names some roles that may append to a table of events and whose sessions q's
// role cannot see.
func HiddenAppenders(ctx context.Context, q store.Querier, table string) (roles string, err error) {
	err = q.QueryRowContext(ctx, `
SELECT coalesce(string_agg(quote_ident(rolname), ', '), '') FROM (
	SELECT rolname FROM pg_roles
	WHERE rolcanlogin AND NOT rolsuper AND NOT pg_has_role(oid, 'USAGE') AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
		AND has_any_column_privilege(oid, to_regclass($1::text)::oid, 'INSERT')
	ORDER BY rolname LIMIT 5) AS r`, table).Scan(&roles)
	return roles, err
}
