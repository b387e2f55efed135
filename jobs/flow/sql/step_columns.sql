-- The columns that scanStep reads of the step s and its job.
s.id, s.name, s.spec->>'kind', s.state, coalesce(s.job_id, 0), coalesce(j.state, h.state, ''), coalesce(j.attempt, h.attempt, 0), coalesce(j.failures, h.failures, 0),
	{time coalesce(j.started_at, h.started_at)}, {time s.finished_at}, coalesce(s.code, h.code, ''), coalesce(s.error, h.error, ''), s.result, s.optional, s.list_id, s.quorum, s.dependents::text
