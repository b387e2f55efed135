-- Notifies the processes that await the deleted jobs, and inserts the jobs into the history.
	RETURNING j.*, CASE WHEN j.awaited THEN pg_notify({ends}, j.id::text) END
), past AS (
	INSERT INTO {history} ({kept}, {held}, state)
	SELECT {kept}, {held}, 'completed' FROM gone WHERE {recorded}
)
SELECT id FROM gone WHERE {bounded}
