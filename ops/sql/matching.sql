-- Selects the positions of dead letters of the unit $1.
SELECT l.global_position FROM {dead_letters} AS l WHERE l.consumer_name = ANY (ARRAY[$1::text]) AND NOT l.replay{conditions}
ORDER BY l.consumer_name, l.global_position LIMIT $2::bigint
