-- Draws the ID of a job.
nextval((SELECT pg_get_serial_sequence({jobs_name}, 'id')::regclass))
