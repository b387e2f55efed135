-- Selects the jobs of queue $2 that are older than the retention. The queue's retention comes
-- first, then that of all queues, then $1 microseconds. NULL means for ever. It begins after the
-- job $4, which finished at $3. The index before that job is full of entries of removed jobs. It
-- skips a job whose end its flow has not recorded.
SELECT id, {time finished_at} FROM {history} WHERE queue = $2::text
	AND finished_at >= coalesce($3::timestamptz, '-infinity') AND (finished_at, id) > (coalesce($3::timestamptz, '-infinity'), $4::bigint)
	AND finished_at < statement_timestamp() - coalesce((SELECT retention FROM {queues} WHERE name = $2::text), (SELECT retention FROM {queues} WHERE name = '*'),
		$1::bigint * interval '1 microsecond')
	AND NOT id = ANY ({ids}::text::bigint[])
	AND (SELECT true FROM {flow_steps} AS s WHERE s.job_id = {history}.id AND s.state = 'enqueued' LIMIT 1) IS NULL
ORDER BY finished_at, id LIMIT {limit}
