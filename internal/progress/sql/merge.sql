-- The unit $2 replaces the units in $1, at the position $3, with the open ranges in $6. The
-- consumer's own row exists already.
WITH gone AS (
	DELETE FROM {gap_skips} WHERE state = 'open' AND consumer_name = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))
), opened AS (
	INSERT INTO {gap_skips} (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at, closed_at)
	SELECT $2::text, $7::uuid, m.first, m.last, m.last - m.first + 1, 'open', $3::bigint, $3::bigint, to_timestamp(m.seen / 1000000.0), NULL
	FROM jsonb_to_recordset($6::jsonb) AS m(first bigint, last bigint, seen numeric)
), moved AS (
	UPDATE {dead_letters} SET consumer_name = $2::text WHERE consumer_name = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))
), ended AS ({end_receipts}
), dead AS (
	DELETE FROM {checkpoints} WHERE consumer_name = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))
), given AS (
	INSERT INTO {assignments} (consumer_name, worker_id, partitions) VALUES ($2::text, $7::uuid, $8::int)
	ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id, partitions = excluded.partitions, updated_at = clock_timestamp()
)
INSERT INTO {checkpoints} AS c (consumer_name, last_position, revision, partition_key, effects, scope, scope_since) VALUES ($2::text, $3::bigint, $4::bigint, $5::text, $9::jsonb, nullif($10::text, '')::jsonb, $11::bigint)
ON CONFLICT (consumer_name) DO UPDATE SET last_position = excluded.last_position, effects = excluded.effects, scope = excluded.scope, scope_since = excluded.scope_since, revision = greatest(c.revision + 1, excluded.revision),
	split_at = NULL, paused_at = NULL, paused_by = NULL, paused_reason = NULL, updated_at = clock_timestamp()
