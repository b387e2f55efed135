SELECT last_position, revision, ctid::text, xmin::text, {written}, coalesce((
	SELECT jsonb_agg(jsonb_build_object('id', id, 'first', gap_position, 'last', gap_end, 'seen', {seen}) ORDER BY gap_position)
	FROM {gap_skips} WHERE consumer_name = $1::text AND state = 'open'), '[]')::text,
	{dead_letter_columns},
	effects::text, {time paused_at}, coalesce(paused_by, ''), coalesce(paused_reason, ''), split_at IS NOT NULL, coalesce(scope::text, ''), coalesce(receipt::text, ''), coalesce({incarnation}, ''), coalesce({last}, 0)
FROM {checkpoints} WHERE consumer_name = $1::text
