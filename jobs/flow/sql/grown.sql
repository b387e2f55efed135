-- Finds the next {most} steps of a long list without a job, after the step $1. This step is the Map
-- step itself or a step of its list.
SELECT id FROM {steps} WHERE id > $1::bigint AND id < ($1::bigint >> 20 << 20) + 1048576 AND state = 'ready' ORDER BY id LIMIT {most}
