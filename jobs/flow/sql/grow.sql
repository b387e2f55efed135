-- Adds the next {most} steps of a Map step with a long list, $1 as a list. The steps are ready, and
-- have no job yet. Once all steps exist, this statement marks the Map step as spread, and counts them.
-- begin.sql enqueues their jobs. Each statement is short, however long the list is.
WITH {given}, list AS MATERIALIZED (
	SELECT m.id, l.result AS list, jsonb_array_length(l.result) AS n,
		coalesce((SELECT max(c.id) - m.id FROM {steps} AS c WHERE c.id > m.id AND c.id < m.id + 1048576), 0) AS have
	FROM mine AS g CROSS JOIN LATERAL (SELECT id, state, list_id FROM {steps} WHERE id = g.id LIMIT 1) AS m
	CROSS JOIN LATERAL (SELECT result FROM {steps} WHERE id = m.list_id LIMIT 1) AS l
	WHERE m.state = 'ready'
), grown AS (
	UPDATE {steps} AS s SET state = CASE WHEN l.have < l.n THEN 'ready' ELSE 'spread' END,
		need = CASE WHEN l.have < l.n THEN s.need WHEN s.quorum = 0 THEN l.n ELSE s.quorum END,
		may_fail = CASE WHEN l.have < l.n THEN s.may_fail WHEN s.quorum = 0 THEN 0 ELSE l.n - s.quorum END
	FROM list AS l WHERE s.id = l.id AND s.id = ANY (ARRAY(SELECT id FROM list)) AND s.state = 'ready'
	RETURNING s.id, s.name, s.state, s.spec, l.list, l.n, l.have
), children AS (
	INSERT INTO {steps} (id, name, state, dependents, spec)
	SELECT m.id + c.i, m.name, 'ready', jsonb_build_array(jsonb_build_object('n', (m.id >> 20) & 1023, 'on', 'success')), m.spec || jsonb_build_object('args', c.value)
	FROM grown AS m CROSS JOIN LATERAL jsonb_array_elements(m.list) WITH ORDINALITY AS c(value, i)
	WHERE m.state = 'ready' AND c.i > m.have AND c.i <= m.have + {most}
	ON CONFLICT (id) DO NOTHING
), counted AS (
	UPDATE {runs} AS r SET unfinished = r.unfinished + g.n FROM grown AS g
	WHERE r.id = g.id >> 30 AND r.id = ANY (ARRAY(SELECT id >> 30 FROM grown)) AND g.state = 'spread'
)
SELECT id, CASE state WHEN 'ready' THEN 'long' ELSE state END FROM grown
{held}
