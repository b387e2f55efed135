-- Writes heartbeats. It returns the rows that still have their claim, including locked rows. For
-- each row it returns whether it was cancelled, and whether a trigger leaves it unchanged. It
-- writes nothing into the rows of the last list.
WITH {listed}, seen AS MATERIALIZED (
	SELECT t.{id} AS id, d.claim, coalesce(t.{cancel}, false) AS cancel FROM {table} AS t, d WHERE {fence} AND t.{state} = 'processing'
), mine AS MATERIALIZED (
	SELECT t.{id} AS id FROM {table} AS t, d WHERE NOT t.{id} = ANY ($4::text::bigint[]) AND {fence} AND t.{state} = 'processing' FOR NO KEY UPDATE OF t SKIP LOCKED
), beat AS (
	UPDATE {table} AS t SET {last_heartbeat_at} = clock_timestamp() WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine)) RETURNING t.{id} AS id
)
SELECT id, claim, cancel, id IN (SELECT id FROM mine) AND id NOT IN (SELECT id FROM beat) FROM seen
