-- True for the jobs of a lane that a claim takes.
state = 'available' AND queue = $3::text AND priority = lane.p AND run_at <= statement_timestamp()
			AND (run_at, id) > (lane.at, lane.id)
			AND kind = ANY (ARRAY(SELECT jsonb_array_elements_text($5::jsonb))) AND (good_until IS NULL OR good_until > statement_timestamp()){condition}
