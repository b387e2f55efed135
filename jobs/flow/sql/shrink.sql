-- Removes the steps of long lists of a run, $1, whose Map steps do not know their number yet.
DELETE FROM {steps} WHERE id = ANY (ARRAY(
	SELECT c.id FROM (SELECT id FROM {steps} AS s WHERE {of_run} AND s.state = 'ready' AND s.id & 1048575 = 0 AND s.list_id IS NOT NULL) AS m
	CROSS JOIN LATERAL (SELECT id FROM {steps} WHERE id > m.id AND id < m.id + 1048576 ORDER BY id) AS c))
