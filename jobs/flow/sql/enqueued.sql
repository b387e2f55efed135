-- Selects the steps of a run that have a job.
SELECT id, job_id FROM {steps} AS s WHERE {of_run} AND s.state = 'enqueued'
