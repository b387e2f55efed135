-- Finds the first rows that may be claimed and for which the argument is true, and locks them. The
-- limit is part of the text. With a parameter for the limit, a generic plan is made for a tenth of
-- the table.
picked AS MATERIALIZED (
	SELECT {alias}.{id} AS id FROM {table} AS {alias}
	WHERE {due} AND {argument}{condition}{here}
	ORDER BY {order}
	LIMIT {here}
	FOR NO KEY UPDATE SKIP LOCKED
)
