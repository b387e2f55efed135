-- Inserts a checkpoint. It checks for the row first. ON CONFLICT would wait for a batch in flight,
-- and delay the start of a worker. The insert is durable even with asynchronous commits: no later
-- statement would repeat it after a crash.
WITH place AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
	WHERE NOT EXISTS (SELECT FROM {checkpoints} WHERE consumer_name = $1::text)
	AND ($3::text = '' OR {incarnation} = $3::text)
)
INSERT INTO {checkpoints} (consumer_name, last_position, scope, scope_since) SELECT $1::text, $2::bigint, $4::jsonb, $2::bigint FROM place
ON CONFLICT (consumer_name) DO NOTHING
