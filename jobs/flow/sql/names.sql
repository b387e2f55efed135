-- Reads the names of a run's steps.
SELECT name FROM {steps} AS s WHERE {of_run} AND id & 1048575 = 0 ORDER BY id
