-- The units in $2 replace $1. Each starts at its position and watches the same open ranges. $3
-- assigns the dead letters.
WITH child AS (
	SELECT jsonb_array_elements_text($2::jsonb) AS unit
), born AS (
	INSERT INTO {checkpoints} (consumer_name, last_position, revision, partition_key, paused_at, paused_by, paused_reason, effects, scope, scope_since)
	SELECT unit, last_position, revision + 1, $4::text, paused_at, paused_by, paused_reason, effects, scope, scope_since FROM {checkpoints}, child WHERE consumer_name = $1::text
), ended AS ({end_receipt}
), gone AS (
	DELETE FROM {gap_skips} WHERE consumer_name = $1::text AND state = 'open' RETURNING *
), opened AS (
	INSERT INTO {gap_skips} (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at, created_at, closed_at) SELECT unit, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, first_seen_at, created_at, NULL FROM gone, child
), moved AS (
	UPDATE {dead_letters} AS l SET consumer_name = m.unit FROM jsonb_to_recordset($3::jsonb) AS m(position bigint, unit text)
	WHERE l.consumer_name = $1::text AND l.global_position = m.position
)
INSERT INTO {assignments} (consumer_name, worker_id, partitions)
SELECT unit, worker_id, partitions FROM {assignments}, child WHERE consumer_name = $1::text ORDER BY unit COLLATE "C" ON CONFLICT (consumer_name) DO NOTHING
