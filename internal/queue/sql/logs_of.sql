SELECT attempt, {time updated_at}, entry FROM {logs} WHERE job_id = $1::bigint ORDER BY attempt, id LIMIT 1000
