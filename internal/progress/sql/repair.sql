-- Sets the progress back after the batch. It records the repair for operators. The repair is
-- durable even with asynchronous commits: no later statement would repeat it after a crash.
WITH durable AS MATERIALIZED (
	SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END
), {set_back}, marked_again AS (
	UPDATE {dead_letters} SET forget = true
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND $18::boolean AND EXISTS (SELECT FROM set_back)
), put_back AS (
	INSERT INTO {dead_letters} (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, order_key, retry_at, forget, received)
	SELECT $1::text, l.position, l.type, l.id, l.event_id, l.event_type, l.error, l.attempts, CASE WHEN l.order_type = '' THEN l.order_id END, clock_timestamp(), coalesce(l.forget, false), coalesce(l.received, false)
	FROM set_back, jsonb_to_recordset($14::jsonb) AS l(position bigint, type text, id text, event_id uuid, event_type text, error text, attempts int, order_type text, order_id text, forget boolean, received boolean)
	ON CONFLICT (consumer_name, global_position) DO NOTHING
), recorded AS (
	INSERT INTO {operations} (consumer_name, operation, detail, operator, reason)
	SELECT $1::text, 'repair', $15::jsonb, $16::text, $17::text FROM set_back
)
SELECT revision FROM set_back
