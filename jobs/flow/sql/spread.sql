-- Adds the jobs of Map steps whose lists are complete. An earlier statement has recorded this, so
-- this statement sees the lists. It takes the first lists with {most} elements in all, and returns
-- the others as ready. A single list with more elements is long: see grow.sql.
WITH {given}, list AS MATERIALIZED (
	SELECT m.id, m.quorum, CASE WHEN l.result IS NULL OR jsonb_typeof(l.result) = 'null' THEN '[]' WHEN jsonb_typeof(l.result) = 'array' THEN l.result END AS list
	FROM mine AS g CROSS JOIN LATERAL (SELECT id, state, list_id, quorum FROM {steps} WHERE id = g.id LIMIT 1) AS m
	CROSS JOIN LATERAL (SELECT result FROM {steps} WHERE id = m.list_id LIMIT 1) AS l
	WHERE m.state = 'ready'
), counts AS MATERIALIZED (
	SELECT id, list, n, n > {most} AND n >= quorum AS long FROM (SELECT *, jsonb_array_length(list) AS n FROM list) AS l
), sums AS MATERIALIZED (
	SELECT *, sum(CASE WHEN long THEN 0 ELSE coalesce(n, 0) END) OVER (ORDER BY id) AS upto FROM counts
), sized AS MATERIALIZED (
	SELECT id, list, n FROM sums WHERE long IS NOT TRUE AND (upto <= {most} OR n > {most})
), spread AS (
	UPDATE {steps} AS s SET need = CASE s.quorum WHEN 0 THEN z.size ELSE s.quorum END, may_fail = CASE s.quorum WHEN 0 THEN 0 ELSE z.size - s.quorum END,
		state = CASE WHEN z.n IS NULL OR z.n < s.quorum THEN 'failed' WHEN z.n = 0 THEN 'completed' ELSE 'spread' END,
		code = CASE WHEN z.n IS NULL THEN 'NO_LIST' WHEN z.n < s.quorum THEN 'TOO_FEW' END,
		error = CASE WHEN z.n IS NULL THEN 'the result of the step that makes its list is no list' WHEN z.n < s.quorum THEN 'the list has ' || z.n || ' elements, and ' || s.quorum || ' are needed' END
	FROM (SELECT id, list, coalesce(n, 0) AS size, n FROM sized) AS z
	WHERE s.id = z.id AND s.id = ANY (ARRAY(SELECT id FROM sized)) AND s.state = 'ready'
	RETURNING s.id, s.name, s.state, s.spec, z.list, z.n
), children AS (
	INSERT INTO {steps} (id, name, state, dependents, spec, job_id)
	SELECT m.id + c.i, m.name, 'enqueued', jsonb_build_array(jsonb_build_object('n', (m.id >> 20) & 1023, 'on', 'success')),
		m.spec || jsonb_build_object('args', c.value), {next_job}
	FROM spread AS m CROSS JOIN LATERAL jsonb_array_elements(m.list) WITH ORDINALITY AS c(value, i) WHERE m.state = 'spread'
	RETURNING id, name, state, spec, job_id
), {enqueue children}, counted AS (
	UPDATE {runs} AS r SET unfinished = r.unfinished + c.n
	FROM jsonb_to_recordset((SELECT jsonb_agg(e) FROM (
		SELECT id >> 30 AS id, sum(n) AS n FROM spread WHERE state = 'spread' GROUP BY 1) AS e)) AS c(id bigint, n int)
	WHERE r.id = c.id AND r.id = ANY (ARRAY(SELECT id >> 30 FROM spread))
)
SELECT id, state FROM spread WHERE (SELECT count(*) FROM notified) >= 0
UNION ALL SELECT id, CASE WHEN long THEN 'long' ELSE 'ready' END FROM sums WHERE id NOT IN (SELECT id FROM sized)
{held}
