INSERT INTO {logs} (job_id, attempt, entry) VALUES ($1::bigint, $2::int, $3::jsonb)
