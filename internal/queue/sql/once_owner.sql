SELECT job_id, hash FROM {once} WHERE key = $1::text
