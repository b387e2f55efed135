-- Inserts a checkpoint. It checks for the row first. ON CONFLICT would wait for a batch in flight,
-- and delay the start of a worker. The insert is durable even with asynchronous commits: no later
-- statement would repeat it after a crash. A version of a projection, another one of which has the
-- effects, begins as a shadow, $5. $6 are the versions in the worker's code: the row of one may not
-- record the projection yet.
WITH place AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
	WHERE NOT EXISTS (SELECT FROM {checkpoints} WHERE consumer_name = $1::text)
	AND ($3::text = '' OR {incarnation} = $3::text)
)
INSERT INTO {checkpoints} (consumer_name, last_position, scope, scope_since, effects)
SELECT $1::text, $2::bigint, $4::jsonb, $2::bigint, CASE WHEN EXISTS ({other_version $4::jsonb}
) OR EXISTS (
	SELECT FROM {checkpoints} WHERE split_part(consumer_name, '#', 1) IN (SELECT jsonb_array_elements_text($6::jsonb)) AND split_at IS NULL
	AND last_position < 9223372036854775807 AND NOT effects @> '[{"after": 9223372036854775807}]'
) THEN $5::jsonb ELSE '[]' END FROM place
ON CONFLICT (consumer_name) DO NOTHING
