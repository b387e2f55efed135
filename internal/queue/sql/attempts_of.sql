SELECT attempt, worker_id, {time started_at}, {time ended_at}, outcome, coalesce(code, ''), coalesce(error, '')
FROM {attempts} WHERE job_id = $1::bigint ORDER BY attempt DESC LIMIT 100
