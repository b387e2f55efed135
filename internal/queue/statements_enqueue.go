package queue

// enqueueSQL draws the ids first, so that the caller learns which job has which id. A subquery
// looks the sequence up once a statement, not once a job. It inserts in the byte order of the
// unique keys, and callers with several lists sort them likewise. So two callers that enqueue
// the same keys do not deadlock. A NOTIFY locks the whole server during the COMMIT, so it is
// skipped while no worker asks for notifications.
//
// pass are CTEs that decide whether the one given job is the first of its key. passed is the
// condition on them.
func enqueueSQL(pass, passed string) string {
	return `
WITH given AS MATERIALIZED (
	SELECT x.*, nextval((SELECT pg_get_serial_sequence({sequence}, 'id')::regclass)) AS id
	FROM ROWS FROM (jsonb_to_recordset($1::jsonb) AS (
		kind text, queue text, priority smallint, at timestamptz, delay bigint, good_until timestamptz, args jsonb, meta jsonb,
		max_attempts int, max_resets int, unique_key text, until_start boolean, null_args boolean)) WITH ORDINALITY
		AS x(kind, queue, priority, at, delay, good_until, args, meta, max_attempts, max_resets, unique_key, until_start, null_args, n)
)` + pass + `, new AS (
	INSERT INTO {jobs} (id, kind, queue, priority, run_at, good_until, args, meta, max_attempts, max_resets, unique_key, until_start)
	SELECT id, kind, coalesce(queue, 'default'), coalesce(priority, 5), coalesce(at, clock_timestamp() + coalesce(delay, 0) * interval '1 microsecond'),
		good_until, CASE WHEN null_args THEN 'null' ELSE coalesce(args, '{}') END, meta, max_attempts, coalesce(max_resets, 5), unique_key, coalesce(until_start, false)
	FROM given WHERE ` + passed + ` ORDER BY unique_key COLLATE "C", n
	ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING
	RETURNING id, queue
), told AS MATERIALIZED (
	SELECT pg_notify({news}, q.queue) FROM (SELECT DISTINCT queue FROM new) AS q
	WHERE EXISTS (SELECT FROM {wanted} AS w WHERE w.queue = q.queue AND w.until > statement_timestamp())
)
SELECT g.n, g.id FROM given AS g JOIN new USING (id) WHERE (SELECT count(*) FROM told) >= 0`
}

// alikeSQL inserts jobs that differ only in their arguments, the elements of $9, and have no
// unique key. It takes half the time. The ids grow in the order of the arguments, since they
// are drawn row by row.
const alikeSQL = `
WITH new AS (
	INSERT INTO {jobs} (kind, queue, priority, run_at, good_until, meta, max_attempts, max_resets, args)
	SELECT $1::text, $2::text, $3::smallint, coalesce($4::timestamptz, clock_timestamp() + $5::bigint * interval '1 microsecond'),
		$6::timestamptz, $7::text::jsonb, $8::int, $10::int, value
	FROM jsonb_array_elements($9::jsonb)
	RETURNING id
), told AS MATERIALIZED (
	SELECT pg_notify({news}, $2::text) WHERE EXISTS (SELECT FROM {wanted} WHERE queue = $2::text AND until > statement_timestamp())
)
SELECT id FROM new WHERE (SELECT count(*) FROM told) >= 0`

const passedOnce = `EXISTS (SELECT FROM passed)`

// onceSQL takes the key $2 for $4 microseconds, with the hash $3 of the job. If $4 is NULL, it
// takes the key for ever.
const onceSQL = `, passed AS (
	INSERT INTO {once} AS o (key, job_id, hash, expires_at)
	SELECT $2::text, id, $3::text, clock_timestamp() + $4::bigint * interval '1 microsecond' FROM given
	ON CONFLICT (key) DO UPDATE SET job_id = excluded.job_id, hash = excluded.hash, expires_at = excluded.expires_at
	WHERE o.expires_at < clock_timestamp()
	RETURNING 1
)`

// emitSQL passes the job unless it was enqueued before. The emitter is $2, the event is at
// position $3, and the call has number $4. It locks the row of emitted_through, so that no
// concurrent Raise removes the rows below.
const emitSQL = `, through AS MATERIALIZED (
	SELECT position FROM {through} WHERE emitter = $2::text FOR SHARE
), passed AS (
	INSERT INTO {emitted} (emitter, position, n)
	SELECT $2::text, $3::bigint, $4::int WHERE NOT EXISTS (SELECT FROM through WHERE position >= $3::bigint)
	ON CONFLICT (emitter, position, n) DO NOTHING
	RETURNING 1
)`

// keysSQL selects the jobs that hold unique keys.
const keysSQL = `
SELECT unique_key, id FROM {jobs} WHERE unique_key = ANY (ARRAY(SELECT jsonb_array_elements_text($1::jsonb)))`

const onceOwnerSQL = `
SELECT job_id, hash FROM {once} WHERE key = $1::text`

// awaitSQL requests a notification at the end of a job, and selects whether the job is unfinished.
const awaitSQL = `
WITH told AS (UPDATE {jobs} SET awaited = true WHERE id = $1::bigint AND NOT awaited RETURNING 1)
SELECT EXISTS (SELECT FROM {jobs} WHERE id = $1::bigint)`

const logSQL = `
INSERT INTO {logs} (job_id, attempt, entry) VALUES ($1::bigint, $2::int, $3::jsonb)`
