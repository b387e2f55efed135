(state = 'void' AND created_at >= first_seen_at AND created_at < first_seen_at + interval '100 microseconds'
	AND worker_id <> '00000000-0000-0000-0000-000000000000'::uuid
	AND closed_at IS NOT NULL AND gap_end IS NOT NULL AND missing IS NOT NULL)
