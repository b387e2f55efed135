-- Returns the faults of the shapes $1. An unknown column that needs a value is a fault, too, since
-- every INSERT would fail. So is a missing unique index, since every ON CONFLICT would fail.
{shapes}
SELECT fault FROM (
	SELECT n, k, fault FROM lacking
	UNION ALL
	SELECT s.n, 2, s.name || ' has a column that the worker does not fill and that has no default: ' || string_agg(a.name, ', ' ORDER BY a.number)
	FROM shape AS s JOIN attribute AS a ON a.oid = s.oid
	WHERE s.whole AND a.wanting AND a.name <> ALL (s.columns)
	GROUP BY s.n, s.name
	UNION ALL
	SELECT x.n, 3, x.name || ' has no unique index on (' || x."on" || ')' || coalesce(' WHERE ' || nullif(x.predicate, ''), '') || ', named ' || x.relation
		|| CASE WHEN to_regclass(x.relation) IS NULL THEN '' ELSE ', which is there and is invalid or of another kind: DROP INDEX ' || x.relation || ' first' END
	FROM indexed AS x
	WHERE x.whole AND x."unique" AND x.columns <@ ARRAY(SELECT a.name FROM attribute AS a WHERE a.oid = x.oid) AND NOT {index_there x.oid}
) AS found ORDER BY n, k, fault
