-- Returns the faults of the shapes $1. An unknown column that needs a value is a fault, too, since
-- every INSERT would fail. So is a missing unique index, since every ON CONFLICT would fail.
{shapes}
SELECT fault FROM (
	SELECT n, k, fault FROM lacking
	UNION ALL
	SELECT s.n, 2, s.name || ' has a column that the worker does not fill and that has no default: ' || string_agg(a.name, ', ' ORDER BY a.number)
	FROM shape AS s JOIN attribute AS a ON a.oid = s.oid
	WHERE cardinality(s.key) > 0 AND a.wanting AND a.name <> ALL (s.columns)
	GROUP BY s.n, s.name
	UNION ALL
	SELECT s.n, 3, s.name || ' has no unique index on (' || array_to_string(s.key, ', ') || ')'
	FROM shape AS s
	WHERE cardinality(s.key) > 0 AND s.key <@ ARRAY(SELECT a.name FROM attribute AS a WHERE a.oid = s.oid) AND NOT EXISTS (
		SELECT FROM pg_index AS i
		WHERE i.indrelid = s.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
		AND s.key = ARRAY(
			SELECT a.name FROM attribute AS a
			WHERE a.oid = s.oid AND a.number = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY a.name COLLATE "C"))
) AS found ORDER BY n, k
