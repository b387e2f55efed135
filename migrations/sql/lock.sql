-- Serializes the appliers, since concurrent CREATE ... IF NOT EXISTS statements fail. The lock
-- belongs to the transaction, so it works behind a pooler, too.
--
-- The role's lock_timeout does not end this wait. The following statements wait for at most a
-- second, or for the role's lock_timeout if that is shorter. Heartbeats and batches queue behind a
-- statement that waits to change their table.
WITH before AS MATERIALIZED (
	SELECT role, set_config('lock_timeout', '0', true) AS lock FROM (SELECT current_setting('lock_timeout') AS role OFFSET 0) AS before
), turn AS MATERIALIZED (
	SELECT role, pg_advisory_xact_lock(hashtextextended('github.com/pgfrontier/worker/migrations', 0)) FROM before WHERE lock IS NOT NULL
)
SELECT set_config('lock_timeout', CASE WHEN role::interval > '0' AND role::interval < '1s' THEN role ELSE '1s' END, true) FROM turn
