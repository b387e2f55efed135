-- The given steps of runs that others have locked.
UNION ALL SELECT id, 'held' FROM given
WHERE NOT id >> 30 = ANY (ARRAY(SELECT id FROM turn)) AND (SELECT true FROM {runs} AS r WHERE r.id = given.id >> 30 LIMIT 1)
