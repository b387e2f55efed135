-- Counts the available jobs of queue n whose run_at compares so with now, over all priorities.
(SELECT count(*) FROM (SELECT FROM generate_series(1, 9) AS p CROSS JOIN LATERAL (SELECT FROM {jobs} AS j WHERE state = 'available' AND j.queue = n.name AND priority = p::smallint AND run_at {argument} statement_timestamp() ORDER BY run_at LIMIT {most}) AS lane LIMIT {most}) AS counted)
