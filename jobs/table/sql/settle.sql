-- Stores the outcomes of runs. A row with the claim that has left processing was settled before, by
-- a lost answer of this statement or by CompleteTx. Such a row is returned with its state. A locked
-- row is returned without a state. A row that a trigger leaves unchanged is returned as unchanged.
-- A row that is not returned was lost.
--
-- A hidden row waits for as long again as it has waited since it was queued.
WITH d AS MATERIALIZED (
	SELECT d.*, 'epoch'::timestamptz + d.claim * interval '1 microsecond' AS started
	FROM jsonb_to_recordset($1::jsonb) AS d(id bigint, claim bigint, "to" text, message text, delay bigint, requeued boolean)
), seen AS MATERIALIZED (
	SELECT t.{id} AS id, d.claim FROM {table} AS t, d WHERE {settle_fence}
), mine AS MATERIALIZED (
	SELECT t.{id} AS id, d.claim, t.{state}::text AS was, d.message, d.delay, d.requeued, d."to" = 'hidden' AS hidden,
		CASE WHEN d."to" = 'completed' THEN d."to"
			WHEN t.{cancel} OR d."to" = 'canceled' THEN 'canceled'
			WHEN d."to" = 'errored' AND coalesce(t.{num_failures}, 0) + 1 >= {most} THEN 'failed'
			WHEN d."to" = 'hidden' THEN 'queued'
			ELSE d."to" END AS final
	FROM {table} AS t, d WHERE {settle_fence} FOR NO KEY UPDATE OF t SKIP LOCKED
), settled AS (
	UPDATE {table} AS t SET
		{state} = m.final::{state_type},
		{failure_message} = m.message::{message_type},
		{num_failures} = coalesce(t.{num_failures}, 0) + (m.final IN ('errored', 'failed'))::int,
		{started_at} = CASE WHEN m.final <> 'queued' THEN t.{started_at} END,
		{finished_at} = CASE WHEN m.final <> 'queued' THEN clock_timestamp() END,
		{queued_at} = CASE WHEN m.final = 'queued' AND m.requeued THEN clock_timestamp() ELSE t.{queued_at} END,
		{process_after} = CASE WHEN m.final <> 'queued' THEN t.{process_after}
			WHEN m.hidden THEN clock_timestamp() + (statement_timestamp() - greatest(least(t.{queued_at}, statement_timestamp() - interval '10 seconds'), statement_timestamp() - interval '1 hour'))
			WHEN m.delay IS NOT NULL THEN clock_timestamp() + m.delay * interval '1 microsecond'
			ELSE t.{process_after} END
	FROM mine AS m WHERE t.{id} = ANY (ARRAY(SELECT id FROM mine)) AND t.{id} = m.id AND m.was = 'processing'
	RETURNING t.{id} AS id, m.claim, t.{state}::text AS state
)
SELECT id, claim, state FROM settled
UNION ALL SELECT id, claim, CASE WHEN was = 'processing' THEN 'unchanged' ELSE was END FROM mine WHERE id NOT IN (SELECT id FROM settled)
UNION ALL SELECT id, claim, '' FROM seen WHERE id NOT IN (SELECT id FROM mine)
