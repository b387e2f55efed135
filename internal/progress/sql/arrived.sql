-- Reads all units of a consumer in one snapshot. Every unit must have passed the position, because
-- only the consumer's key tells the unit of the event. The own row of a split consumer is ignored.
-- A row at the highest bigint is left of a renamed consumer, which continues under another name.
--
-- The name may also be that of a projection, even if a version of it has the same name. Then the
-- consumer is the version that is no shadow. If several are none, the two names differ.
WITH versions AS (
	SELECT min(split_part(consumer_name, '#', 1)) AS first, max(split_part(consumer_name, '#', 1)) AS last FROM {checkpoints}
	WHERE scope->>'projection' = $1::text AND split_at IS NULL AND last_position < 9223372036854775807 AND NOT effects @> '[{"after": 9223372036854775807}]'
	AND NOT EXISTS (SELECT FROM {checkpoints} WHERE consumer_name = $1::text AND split_at IS NULL AND last_position < 9223372036854775807 AND scope->>'projection' IS DISTINCT FROM $1::text)
), named AS MATERIALIZED (SELECT coalesce(first, $1::text) AS name, coalesce(last, $1::text) AS other FROM versions)
SELECT min(named.name), min(named.other), min(u.last_position), bool_or(u.paused_at IS NOT NULL),
	bool_or(EXISTS (SELECT FROM {gap_skips} AS s WHERE s.consumer_name = u.consumer_name AND s.state = 'open' AND s.gap_position <= $2::bigint AND s.gap_end >= $2::bigint)),
	bool_or(EXISTS (SELECT FROM {dead_letters} AS l WHERE l.consumer_name = u.consumer_name AND l.global_position = $2::bigint AND NOT l.replay)),
	bool_or(EXISTS (SELECT FROM {dead_letters} AS l WHERE l.consumer_name = u.consumer_name AND l.global_position = $2::bigint AND l.replay)),
	count(*) > 1, coalesce({incarnation}, ''),
	coalesce((array_agg(u.paused_by ORDER BY u.last_position) FILTER (WHERE u.paused_at IS NOT NULL))[1], ''),
	coalesce((array_agg(u.paused_reason ORDER BY u.last_position) FILTER (WHERE u.paused_at IS NOT NULL))[1], ''), bool_and(u.last_position = 9223372036854775807)
FROM named, LATERAL (
	SELECT consumer_name, last_position, paused_at, paused_by, paused_reason FROM {checkpoints} WHERE consumer_name = named.name AND split_at IS NULL
	UNION ALL
	SELECT c.consumer_name, c.last_position, c.paused_at, c.paused_by, c.paused_reason FROM {checkpoints} AS own
	JOIN {checkpoints} AS c ON left(c.consumer_name, length(named.name) + 1) = named.name || '#'
	WHERE own.consumer_name = named.name AND own.split_at IS NOT NULL
) AS u
HAVING count(*) > 0
