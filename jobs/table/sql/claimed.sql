-- Claims the picked rows. A row that was cancelled before it began ends here. A row that a trigger
-- leaves unchanged has no state in the answer.
claimed AS (
	UPDATE {table} AS t SET
	{state} = CASE WHEN t.{cancel} THEN 'canceled'::{state_type} ELSE 'processing'::{state_type} END,
	{started_at} = CASE WHEN t.{cancel} THEN t.{started_at} ELSE clock_timestamp() END,
	{finished_at} = CASE WHEN t.{cancel} THEN clock_timestamp() END,
	{failure_message} = CASE WHEN t.{cancel} THEN t.{failure_message} END,
	{execution_logs} = CASE WHEN t.{cancel} THEN t.{execution_logs} END,
	{worker_hostname} = CASE WHEN t.{cancel} THEN t.{worker_hostname} ELSE $2::text END,
	{last_heartbeat_at} = clock_timestamp()
	WHERE t.{id} = ANY (ARRAY(SELECT id FROM picked))
	RETURNING t.{id} AS id, coalesce({microseconds t.{started_at}}, 0) AS claim, t.{state}::text AS state, coalesce(t.{num_failures}, 0) AS failures, coalesce(t.{num_resets}, 0) AS resets
)
SELECT id, claim, state, failures, resets, {server} FROM claimed
UNION ALL SELECT id, 0, '', 0, 0, 0 FROM picked WHERE id NOT IN (SELECT id FROM claimed)
