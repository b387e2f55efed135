-- Selects whether some runs of flows have not ended but no worker advances them. A worker that
-- advances flows sweeps once a second, or after the pause that the last sweep stored.
SELECT EXISTS (SELECT FROM {flow_runs} WHERE finished_at IS NULL) AND coalesce((SELECT next_at FROM {flow_sweep}) < statement_timestamp() - interval '1 minute', true)
