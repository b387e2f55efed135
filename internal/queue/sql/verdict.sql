-- Selects the outcome that an earlier statement stored for each run, or that the run is still
-- running, or that no table has the job. A reset stores no outcome for the run that it takes from a
-- worker, also if it ends the job.
WITH d AS MATERIALIZED (
	SELECT d.id, coalesce(
		(SELECT h.state FROM {history} AS h WHERE h.id = d.id AND h.claim = d.claim AND h.code IS DISTINCT FROM 'WORKER_LOST'),
		(SELECT 'available' FROM {attempts} AS a WHERE a.job_id = d.id AND a.claim = d.claim AND a.outcome <> 'lost' LIMIT 1),
		(SELECT 'running' FROM {jobs} AS j WHERE j.id = d.id AND j.claim = d.claim),
		CASE WHEN (SELECT true FROM {jobs} WHERE id = d.id LIMIT 1) IS NULL AND (SELECT true FROM {history} WHERE id = d.id LIMIT 1) IS NULL
			AND (SELECT true FROM {attempts} WHERE job_id = d.id LIMIT 1) IS NULL THEN 'gone' END) AS state
	FROM unnest($1::text::bigint[], $2::text::bigint[]) AS d(id, claim)
)
SELECT id, state FROM d WHERE {primary} AND state IS NOT NULL
