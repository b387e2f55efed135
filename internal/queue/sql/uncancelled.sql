-- The columns of kept without cancel_at.
id, kind, queue, priority, run_at, good_until, args, meta, created_at, attempt, failures, resets, max_attempts, max_resets
