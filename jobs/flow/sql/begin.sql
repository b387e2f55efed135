-- Enqueues the jobs of steps of long lists, once the Map step knows their number. If the Map step
-- has ended before the last job has begun, the other jobs begin all the same.
WITH {given}, begun AS (
	UPDATE {steps} AS s SET state = 'enqueued', job_id = {next_job}
	WHERE s.id = ANY (ARRAY(SELECT id FROM mine)) AND s.state = 'ready' AND s.id & 1048575 <> 0
		AND (SELECT m.state FROM {steps} AS m WHERE m.id = s.id >> 20 << 20) IN ('spread', 'completed', 'failed')
	RETURNING s.id, s.name, s.state, s.spec, s.job_id
), {enqueue begun}
SELECT id, state FROM begun WHERE (SELECT count(*) FROM notified) >= 0
{held}
