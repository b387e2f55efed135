-- Ends jobs that the transaction has locked and that do not run. In the history, cancel_at is the
-- last of the columns that it copies.
WITH gone AS (
	DELETE FROM {jobs} WHERE {these} AND state <> 'running' RETURNING *
), told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
)
INSERT INTO {history} ({kept}, state)
SELECT {uncancelled}, clock_timestamp(), 'cancelled' FROM gone WHERE (SELECT count(*) FROM told) >= 0
