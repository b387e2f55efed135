-- Ends the steps of a run that have no job. Ends that were to be recorded need no record: no
-- dependent can begin.
WITH stopped AS (
	UPDATE {steps} AS s SET finished_at = clock_timestamp(), state = CASE WHEN s.state IN ('waiting', 'ready', 'spread') THEN 'cancelled' ELSE s.state END
	WHERE {of_run} AND finished_at IS NULL AND state <> 'enqueued'
	RETURNING s.*
), effect AS MATERIALIZED (
	SELECT s.id, s.leaf, {effects} FROM stopped AS s
), {concluded}
SELECT count(*) FROM ends
