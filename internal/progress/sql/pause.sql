WITH paused AS (
	UPDATE {checkpoints}
	SET paused_at = clock_timestamp(), paused_by = $3::text, paused_reason = $4::text, revision = revision + 1, updated_at = clock_timestamp()
	WHERE consumer_name = $1::text AND revision = $2::bigint AND paused_at IS NULL
		AND EXISTS (SELECT FROM {assignments} WHERE consumer_name = $1::text AND 'worker ' || worker_id = $3::text)
	RETURNING consumer_name
)
INSERT INTO {operations} (consumer_name, operation, detail, operator, reason)
SELECT consumer_name, 'pause', '{}', $3::text, $4::text FROM paused
