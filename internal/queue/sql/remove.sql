-- Removes the finished jobs $1, with their attempts and logs. It fails at once if another
-- transaction has locked one of them. It cannot skip that row, since its role need not have the
-- right to lock rows.
WITH gone AS (
	DELETE FROM {history} WHERE id = ANY (ARRAY(SELECT unnest($1::text::bigint[]) WHERE set_config('lock_timeout', '20', true) IS NOT NULL)) RETURNING id
), attempts AS (
	DELETE FROM {attempts} WHERE job_id = ANY (ARRAY(SELECT id FROM gone))
), logs AS (
	DELETE FROM {logs} WHERE job_id = ANY (ARRAY(SELECT id FROM gone))
)
SELECT count(*) FROM gone
