SELECT last_position FROM {checkpoints} WHERE consumer_name = $1::text AND split_at IS NULL
	AND EXISTS (SELECT FROM {assignments} WHERE consumer_name = $1::text AND worker_id = $2::uuid AND partitions = $3::int) FOR UPDATE
