-- The condition that a job runs under a claim of the list d and that its row is not locked. The
-- condition locks the row, so that its ctid stays valid. A row that another transaction has changed
-- since the statement began counts as locked.
j.ctid = ANY (ARRAY(SELECT j.ctid FROM {jobs} AS j WHERE {fence} FOR UPDATE SKIP LOCKED))
