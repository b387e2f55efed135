-- An error, if a trigger has dropped a row of the history: otherwise the job would be gone without a
-- trace. The cast fails.
WHERE CASE WHEN (SELECT count(*) FROM past) = (SELECT count(*) FROM gone) THEN false
	ELSE ('the server leaves out rows of ' || {history_name} || ' without an error: a BEFORE trigger of yours must return NEW; rows that it kept: ' || (SELECT count(*) FROM past))::boolean END
