-- Returns, after the guard has moved nothing, the incarnation, and whether the guard's conditions hold
-- all the same: then a trigger drops the change.
SELECT coalesce({incarnation}, ''), EXISTS (
	SELECT FROM {checkpoints} WHERE ctid = $4::text::tid AND consumer_name = $1::text AND revision = $2::bigint AND last_position = $5::bigint AND last_position <= $6::bigint
) AND $6::bigint <= {last} AND EXISTS (SELECT FROM {assignments} WHERE consumer_name = $1::text AND worker_id = $3::uuid)
