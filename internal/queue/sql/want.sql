INSERT INTO {wanted} AS w (queue, until) VALUES ($1::text, statement_timestamp() + interval '30 seconds')
ON CONFLICT (queue) DO UPDATE SET until = excluded.until WHERE w.until < statement_timestamp() + interval '15 seconds'
