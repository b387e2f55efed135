-- True for a completed job that gets a row in the history. In a queue of retention 0 it gets none,
-- unless the row is needed: for a process that awaits the job, for the flow of a step, or for the
-- leader, which removes earlier attempts with the row. A statement reads the array once.
attempt > 1 OR awaited OR meta->'flow_step' IS NOT NULL
	OR NOT ARRAY[queue, '*'] && ARRAY(SELECT name FROM {queues} WHERE retention <= '0')
	OR coalesce((SELECT q.retention FROM {queues} AS q WHERE q.name = gone.queue), '0') > '0'
