-- complete.sql for one run: a list costs the server half as much again.
WITH gone AS (
	DELETE FROM {jobs} AS j
	WHERE j.ctid = (SELECT ctid FROM {jobs} WHERE id = $1::bigint AND claim = $2::bigint FOR UPDATE SKIP LOCKED) {completed}
