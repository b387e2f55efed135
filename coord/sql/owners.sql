-- The assignments as JSON, if $7 asks for them. A worker that leaves deletes its assignments. So a
-- checkpoint without an assignment is of a unit that no worker runs.
CASE WHEN $7::boolean THEN json_build_object('owners', (SELECT coalesce(json_object_agg(consumer_name, worker_id), '{}') FROM (
		SELECT consumer_name, worker_id FROM {assignments}
		UNION ALL
		SELECT consumer_name, NULL FROM {checkpoints} AS c
		WHERE paused_at IS NULL AND NOT EXISTS (SELECT FROM {assignments} AS a WHERE a.consumer_name = c.consumer_name)
	) AS units), 'wanted', (
		SELECT json_object_agg(consumer_name, partitions) FROM {assignments} WHERE partitions IS NOT NULL
	), 'parts', (
		SELECT json_agg(json_build_object('unit', consumer_name, 'key', partition_key, 'split', split_at IS NOT NULL, 'fixed', coalesce(partitions, 0)))
		FROM {checkpoints} WHERE split_at IS NOT NULL OR partitions IS NOT NULL OR strpos(consumer_name, '#') > 0
	))::text ELSE 'null' END
