-- Must follow a lock of the row in the same transaction. The record then has the position and the
-- open ranges that the last batch left. Without the lock, the statement would wait for a batch that
-- commits. It would then record the new position with the old open ranges. If From is unknown,
-- nothing is recorded. Before the first scope, effects of $8 tell that an operator has let the
-- consumer begin: it becomes a shadow, $7, if another version of its projection has the effects.
WITH changed AS (
	UPDATE {checkpoints} SET scope = $3::jsonb, scope_since = CASE WHEN scope IS NULL THEN last_position ELSE coalesce(scope_since, last_position) END,
		revision = revision + 1, updated_at = clock_timestamp(), receipt = NULL,
		effects = CASE WHEN scope IS NULL AND effects = $8::jsonb AND EXISTS ({other_version $3::jsonb}) THEN $7::jsonb ELSE effects END
	WHERE consumer_name = $1::text AND split_at IS NULL AND coalesce(scope::text, '') = $2::text AND ($6::text = '' OR {incarnation} = $6::text)
	RETURNING last_position
), ended AS ({end_receipt} AND EXISTS (SELECT FROM changed)
), told AS (
	INSERT INTO {operations} (consumer_name, operation, detail, operator, reason)
	SELECT $1::text, 'scope', jsonb_build_object('from', nullif($2::text, '')::jsonb, 'to', $3::jsonb, 'position', last_position, 'open', coalesce((
		SELECT jsonb_agg(jsonb_build_object('first', gap_position, 'last', gap_end)) FROM {gap_skips} WHERE consumer_name = $1::text AND state = 'open'), '[]')), $4::text, $5::text
	FROM changed WHERE $2::text <> ''
)
SELECT last_position FROM changed
