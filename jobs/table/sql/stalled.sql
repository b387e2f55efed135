-- Finds rows whose heartbeat is older than half of StalledMaxAge. The table may refuse to reset
-- some of these rows.
SELECT t.{id}, {microseconds {heartbeat}} FROM {table} AS t
WHERE t.{state} = 'processing' AND {silent {stalled_half}}
ORDER BY t.{id} LIMIT {most_stalled}
