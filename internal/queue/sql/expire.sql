-- Change the rows of a list that are not locked. The ids are an array: a join with them may become
-- a sequential scan of the backlog.
WITH gone AS (
	DELETE FROM {jobs} WHERE id = ANY (ARRAY(
		SELECT id FROM {jobs} WHERE id = ANY ($1::text::bigint[]) AND state = 'available' AND good_until <= statement_timestamp() FOR UPDATE SKIP LOCKED))
	RETURNING *
), told AS MATERIALIZED (
	SELECT pg_notify({ends}, id::text) FROM gone WHERE awaited
)
INSERT INTO {history} ({kept}, state) SELECT {kept}, 'expired' FROM gone WHERE (SELECT count(*) FROM told) >= 0
RETURNING id
