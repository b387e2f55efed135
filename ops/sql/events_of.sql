-- The positions of an aggregate's events up to $4, above the consumer's start: position $5, or, if $6,
-- the head of the log when it was registered.
SELECT global_position FROM {events}
WHERE aggregate_type = $2::text AND aggregate_id = $3::text AND global_position <= $4::bigint
	AND global_position > CASE WHEN $6::boolean THEN coalesce((SELECT scope_since FROM {checkpoints} WHERE consumer_name = $1::text), 0) ELSE $5::bigint END
ORDER BY global_position
