UPDATE {jobs} SET cancel_at = clock_timestamp() WHERE {these} AND state = 'running' AND cancel_at IS NULL
