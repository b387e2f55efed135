-- Counts the steps in effect, which have ended. It ends a run with its last step.
counted AS (
	UPDATE {runs} AS r SET unfinished = r.unfinished - c.n, bad = r.bad + c.bad,
		state = CASE WHEN r.unfinished - c.n > 0 THEN 'running' WHEN r.bad + c.bad = 0 THEN 'completed' WHEN r.cancel_at IS NOT NULL THEN 'cancelled' ELSE 'failed' END,
		finished_at = CASE WHEN r.unfinished - c.n <= 0 THEN clock_timestamp() END
	FROM jsonb_to_recordset((SELECT jsonb_agg(e) FROM (
		SELECT id >> 30 AS id, count(*) AS n, count(*) FILTER (WHERE leaf AND failed AND NOT good) AS bad FROM effect GROUP BY 1) AS e)) AS c(id bigint, n int, bad int)
	WHERE r.id = c.id AND r.id = ANY (ARRAY(SELECT id >> 30 FROM effect))
	RETURNING r.id, r.flow, r.state, r.awaited AND r.finished_at IS NOT NULL AS over, r.finished_at IS NOT NULL AS ended,
		CASE WHEN isfinite(r.created_at) THEN (greatest(extract(epoch FROM clock_timestamp() - greatest(r.created_at, clock_timestamp() - interval '36500 days')), 0) * 1000000)::bigint ELSE 0 END AS took
), ends AS MATERIALIZED (
	SELECT pg_notify({ends}, 'run ' || id) FROM counted WHERE over
)
