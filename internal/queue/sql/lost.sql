SELECT j.id FROM {jobs} AS j
WHERE j.state = 'running' AND j.claimed_by = ANY (ARRAY(SELECT worker_id FROM dead)) AND NOT j.id = ANY ({ids}::text::bigint[])
ORDER BY j.id LIMIT {limit} FOR UPDATE OF j SKIP LOCKED
