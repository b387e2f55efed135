-- True for an event e that the unit $1 has not passed in doubt. An event that was passed in doubt
-- and has become visible since is still to be delivered, late.
NOT EXISTS (
	SELECT FROM {gap_skips} AS s
	WHERE s.consumer_name = $1::text AND s.state = 'open' AND s.gap_position <= e.global_position AND s.gap_end >= e.global_position)
