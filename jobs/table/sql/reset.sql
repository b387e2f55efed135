-- Resets the rows of the list whose heartbeat has not changed. A job that kills workers and its
-- neighbours get different delays. Otherwise the neighbours would count as many resets as the
-- killer. A row that a trigger leaves unchanged has no state in the answer.
WITH d AS MATERIALIZED (
	SELECT * FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, heartbeat)
), stalled AS MATERIALIZED (
	SELECT t.{id} AS id, {age {heartbeat}} AS age,
		CASE WHEN t.{cancel} THEN 'canceled' WHEN coalesce(t.{num_resets}, 0) >= {resets} THEN 'failed' ELSE 'queued' END AS final
	FROM {table} AS t, d
	WHERE t.{id} = ANY (ARRAY(SELECT id FROM d)) AND t.{id} = d.id AND t.{state} = 'processing'
		AND {microseconds {heartbeat}} IS NOT DISTINCT FROM d.heartbeat AND {silent {stalled_age}}
	FOR NO KEY UPDATE OF t SKIP LOCKED
), reset AS (
	UPDATE {table} AS t SET
	{state} = s.final::{state_type},
	{failure_message} = CASE WHEN s.final = 'failed' THEN {reset_message}::{message_type} END,
	{num_resets} = coalesce(t.{num_resets}, 0) + (s.final = 'queued')::int,
	{started_at} = CASE WHEN s.final <> 'queued' THEN t.{started_at} END,
	{finished_at} = CASE WHEN s.final <> 'queued' THEN clock_timestamp() END,
	{queued_at} = CASE WHEN s.final = 'queued' THEN clock_timestamp() ELSE t.{queued_at} END,
	{process_after} = CASE WHEN s.final = 'queued' THEN clock_timestamp() + random() * 2 ^ least(coalesce(t.{num_resets}, 0), 8) * interval '1 second' ELSE t.{process_after} END
	FROM stalled AS s WHERE t.{id} = ANY (ARRAY(SELECT id FROM stalled)) AND t.{id} = s.id
	RETURNING t.{id} AS id, t.{state}::text AS state, coalesce(s.age, 0) AS age
)
SELECT id, state, age FROM reset
UNION ALL SELECT id, '', 0 FROM stalled WHERE id NOT IN (SELECT id FROM reset)
