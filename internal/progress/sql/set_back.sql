-- Sets a checkpoint back if a condition holds. The CTEs also revert the audit, the
-- receipts and the effects that the batch's transaction $4 wrote. more is set in the row as well. Dead letters
-- of the batch above $10 are removed where removes holds.
set_back AS (
	UPDATE {checkpoints}
	SET last_position = $6::bigint, effects = coalesce($11::jsonb, effects), receipt = $12::text::bigint[]{more}
	WHERE ctid = $3::text::tid AND consumer_name = $1::text AND revision = $2::bigint AND xmin::text = $4::text
		AND {incarnation} = $5::text AND {condition}
	RETURNING revision, updated_at, ctid::text AS at, partition_key, scope
), unmarked AS (
	DELETE FROM {gap_skips}
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND EXISTS (SELECT FROM set_back)
), marked AS ({marks_of_set_back}
), unreceived AS (
	DELETE FROM {receipts}
	WHERE consumer_name = split_part($1::text, '#', 1) AND unit = $1::text AND xmin::text = $4::text AND $13::jsonb IS NOT NULL AND EXISTS (SELECT FROM set_back)
), received AS ({receipts_of_set_back}
), removed AS (
	DELETE FROM {dead_letters}
	WHERE consumer_name = $1::text AND xmin::text = $4::text AND global_position > $10::bigint AND {removes} AND EXISTS (SELECT FROM set_back)
)
