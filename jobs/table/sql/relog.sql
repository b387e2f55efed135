-- Distinguishes a lost run from a missing entry.
WITH mine AS MATERIALIZED (
	SELECT t.{id} AS id, coalesce(cardinality(t.{execution_logs}), 0) AS entries FROM {table} AS t WHERE {fence_one} FOR NO KEY UPDATE
), changed AS (
	UPDATE {table} AS t SET {execution_logs}[$5::int] = $4::text::{log_type}
	FROM mine AS m WHERE t.{id} = m.id AND $5::int BETWEEN 1 AND m.entries
)
SELECT entries FROM mine
