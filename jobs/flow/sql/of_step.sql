LEFT JOIN LATERAL (SELECT state, attempt, failures, started_at FROM {jobs} WHERE id = s.job_id LIMIT 1) AS j ON true
LEFT JOIN LATERAL (SELECT state, attempt, failures, started_at, code, error FROM {history} WHERE {its_job} LIMIT 1) AS h ON true
