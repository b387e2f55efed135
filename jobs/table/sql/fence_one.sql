-- The fence for one run. The statement may wait for the row, since the handler of the run waits for
-- the statement.
t.{id} = $1::bigint AND t.{started_at} = 'epoch'::timestamptz + $2::bigint * interval '1 microsecond'
	AND t.{worker_hostname} = $3::text AND t.{state} = 'processing'
