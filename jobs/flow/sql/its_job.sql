-- Finds the finished job of the step s. If IDs of jobs repeat, another job may have this ID in the
-- history.
id = s.job_id AND meta->'flow_step' = to_jsonb(s.id)
