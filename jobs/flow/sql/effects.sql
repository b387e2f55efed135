-- The effect of the ends of the steps s on their dependents: good and failed. failed includes steps
-- that were skipped because of a failed step.
s.state = 'completed' OR s.state = 'skipped' AND coalesce(s.code, '') = 'SKIPPED' OR s.optional AND s.state IN ('failed', 'cancelled', 'expired') AS good,
		s.state IN ('failed', 'cancelled', 'expired') OR s.state = 'skipped' AND coalesce(s.code, '') <> 'SKIPPED' AND s.blamed AS failed
