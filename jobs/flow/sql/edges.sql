-- Reads the steps of a run that has ended, with the effects of their ends on dependents.
SELECT e.id, e.name, e.state, e.list_id IS NOT NULL, e.quorum, e.leaf, e.failed, e.good, coalesce((
	SELECT jsonb_agg(jsonb_build_object('n', d.n, 'ok', {meaning}) ORDER BY d.n)
	FROM jsonb_to_recordset(e.dependents) AS d(n bigint, "on" text, "when" jsonb)), '[]')::text
FROM (SELECT s.*, {effects} FROM {steps} AS s WHERE {of_run}) AS e ORDER BY e.id
