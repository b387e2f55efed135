-- Serializes the claims of a capped queue. The jobs are counted in the next statement, since the
-- snapshot of this one is older than its lock.
SELECT name, max_running, set_config('idle_in_transaction_session_timeout', '2000', true) || set_config('lock_timeout', '0', true)
FROM {queues} WHERE name IN ('*', $1::text) AND max_running IS NOT NULL ORDER BY name FOR NO KEY UPDATE
