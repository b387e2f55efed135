-- Reads the newest operations of a consumer through an index. Former units are known only from
-- their operations: one index lookup finds each name. Other names may lie between those of the
-- units, since collations ignore punctuation.
WITH RECURSIVE names (name) AS (
	(SELECT consumer_name FROM {operations} WHERE consumer_name >= $3::text AND consumer_name <= {last_unit} ORDER BY consumer_name LIMIT 1)
	UNION ALL
	SELECT (SELECT o.consumer_name FROM {operations} AS o WHERE o.consumer_name > names.name AND o.consumer_name <= {last_unit} ORDER BY o.consumer_name LIMIT 1) FROM names WHERE name IS NOT NULL
)
SELECT {operation_columns} FROM names CROSS JOIN LATERAL (
	SELECT * FROM {operations} AS o WHERE o.consumer_name = ANY (ARRAY[names.name]) AND o.id < $1::bigint
	ORDER BY o.consumer_name DESC, o.id DESC LIMIT $2::bigint
) AS o
WHERE split_part(names.name, '#', 1) = $3::text
ORDER BY o.id DESC LIMIT $2::bigint
