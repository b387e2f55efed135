-- The columns of a finished or unfinished job.
id, kind, queue, priority, {time_or_never run_at}, {time_or_never good_until}, state, args, meta, {time created_at},
	attempt, failures, resets, coalesce(max_attempts, 0), {time started_at}, claimed_by
