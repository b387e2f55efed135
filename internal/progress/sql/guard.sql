-- Moves the checkpoint of a consumer, as the first statement of a batch. See Checkpoints.Guard.
--
-- The statement finds the row by its ctid, where it was last read. A search by name would read all
-- versions of the row that cannot be removed yet. Beside a transaction that stays open, each batch
-- would be slower than the batch before. A row that has moved is not found, so the caller loads it
-- again. The position is compared as well as the revision, because a process of another library
-- does not raise the revision.
--
-- A dead connection must not keep the row. So the server ends a transaction that stays idle for as
-- long as a batch may take. The limit is set before the wait for the row: a guard that fails
-- afterwards still holds the lock.
--
-- The role's lock_timeout does not end the wait for the row. The handlers' statements have the
-- role's lock_timeout again.
WITH limits AS MATERIALIZED (
	SELECT role, set_config('lock_timeout', '0', true) AS lock, set_config('idle_in_transaction_session_timeout', $6::text, true) AS idle
	FROM (SELECT current_setting('lock_timeout') AS role OFFSET 0) AS before
), guard AS (
	UPDATE {checkpoints}
	SET last_position = $3::bigint, revision = revision + 1, updated_at = clock_timestamp(), receipt = CASE
			WHEN $14::boolean THEN ARRAY[$9::bigint, $10::bigint, coalesce(receipt[3], 0) + $11::bigint,
				(coalesce(receipt[4], 0) + $12::bigint) & 4611686018427387903, (coalesce(receipt[5], 0) + $13::bigint) & 4611686018427387903]
			WHEN $9::bigint IS NOT NULL THEN ARRAY[$9::bigint, $10::bigint, $11::bigint, $12::bigint, $13::bigint] END{effects}
	WHERE ctid = $7::text::tid
		AND consumer_name = $1::text AND revision = $2::bigint AND last_position <= $3::bigint AND last_position = $8::bigint
		AND {incarnation} = $4::text AND $3::bigint <= {last}
		AND EXISTS (SELECT FROM {assignments} WHERE consumer_name = $1::text AND worker_id = $5::uuid)
		AND (SELECT lock || idle FROM limits) IS NOT NULL
	RETURNING revision, ctid::text AS at, xmin::text AS author, {written} AS written, tableoid AS home, updated_at, partition_key, scope
){audit}
SELECT revision, at, author, written, pg_current_xact_id()::text, current_setting('role'), {mark_transaction},
	set_config('lock_timeout', (SELECT role FROM limits), true) IS NOT NULL AND {sign_batch}, {all_kept} FROM guard
