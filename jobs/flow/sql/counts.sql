-- Counts the jobs of Map steps by state.
SELECT s.id >> 20 << 20, s.state, coalesce(j.state, ''), count(*) FROM {steps} AS s
LEFT JOIN LATERAL (SELECT state FROM {jobs} WHERE id = s.job_id AND s.state = 'enqueued' LIMIT 1) AS j ON true
WHERE {of_run} AND s.id & 1048575 <> 0 GROUP BY 1, 2, 3
