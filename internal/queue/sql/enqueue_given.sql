-- Draws the ids first, so that the caller learns which job has which id. A subquery looks the
-- sequence up once a statement, not once a job. It inserts in the byte order of the unique keys,
-- and callers with several lists sort them likewise. So two callers that enqueue the same keys do
-- not deadlock. A NOTIFY locks the whole server during the COMMIT, so it is skipped while no worker
-- asks for notifications.
WITH given AS MATERIALIZED (
	SELECT x.*, nextval((SELECT pg_get_serial_sequence({sequence}, 'id')::regclass)) AS id
	FROM ROWS FROM (jsonb_to_recordset($1::jsonb) AS (
		kind text, queue text, priority smallint, at timestamptz, delay bigint, good_until timestamptz, args jsonb, meta jsonb,
		max_attempts int, max_resets int, unique_key text, until_start boolean, null_args boolean)) WITH ORDINALITY
		AS x(kind, queue, priority, at, delay, good_until, args, meta, max_attempts, max_resets, unique_key, until_start, null_args, n)
)
