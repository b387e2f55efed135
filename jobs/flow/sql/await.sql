-- Requests a notification of the end of a run. It returns whether the end is still to come.
WITH marked AS (UPDATE {runs} SET awaited = true WHERE id = $1::bigint AND NOT awaited AND state = 'running')
SELECT coalesce((SELECT state FROM {runs} WHERE id = $1::bigint), '')
