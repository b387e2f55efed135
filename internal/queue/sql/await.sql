-- Requests a notification at the end of a job, and selects whether the job is unfinished.
WITH told AS (UPDATE {jobs} SET awaited = true WHERE id = $1::bigint AND NOT awaited RETURNING 1)
SELECT EXISTS (SELECT FROM {jobs} WHERE id = $1::bigint)
