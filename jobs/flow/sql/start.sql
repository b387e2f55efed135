-- Starts a run of the flow $2 in version $3, whose record is $4, with the steps $1 and the key $5.
-- It returns no row if the key is taken.
WITH given AS MATERIALIZED (
	SELECT * FROM jsonb_to_recordset($1::jsonb) AS g(n bigint, name text, need int, may_fail int, quorum int, leaf boolean, optional boolean, list bigint,
		dependents jsonb, spec jsonb)
), known AS (
	INSERT INTO {flows} (name, version, shape)
	SELECT $2::text, $3::text, $4::jsonb WHERE NOT EXISTS (SELECT FROM {flows} WHERE name = $2::text AND version = $3::text)
	ON CONFLICT (name, version) DO NOTHING
), run AS (
	INSERT INTO {runs} (flow, version, key, unfinished) SELECT $2::text, $3::text, $5::text, count(*) FROM given
	ON CONFLICT (flow, key) WHERE key IS NOT NULL AND state = 'running' DO NOTHING
	RETURNING id
), placed AS (
	INSERT INTO {steps} (id, name, state, need, may_fail, quorum, leaf, optional, list_id, dependents, spec, job_id)
	SELECT (r.id << 30) | (g.n << 20), g.name, CASE WHEN g.need = 0 THEN 'enqueued' ELSE 'waiting' END, g.need, g.may_fail, g.quorum, g.leaf, g.optional,
		(r.id << 30) | (g.list << 20), g.dependents, g.spec, CASE WHEN g.need = 0 THEN {next_job} END
	FROM given AS g CROSS JOIN run AS r
	RETURNING id, name, state, spec, job_id
), {enqueue placed}
SELECT id FROM run WHERE (SELECT count(*) FROM notified) >= 0
