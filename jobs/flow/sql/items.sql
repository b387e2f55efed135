-- Reads the jobs of Map steps: the first $2 of jobs that have not completed, then of the others.
SELECT {step_columns} FROM {steps} AS s {of_step} WHERE {of_run} AND s.id & 1048575 <> 0 ORDER BY s.state = 'completed', s.id LIMIT $2::bigint
