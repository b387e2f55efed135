-- The columns that scanJob reads.
j.id, j.claim, j.kind, j.priority, {time_or_never j.run_at}, j.args, j.meta, j.attempt, j.failures, j.resets, coalesce(j.max_attempts, 0), j.started_at IS NOT NULL, j.cancel_at IS NOT NULL, j.good_until IS NOT NULL
