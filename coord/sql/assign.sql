-- Writes assignments if the CTE leader has a row. It returns whether it has, and the number of
-- written rows. One statement is one transaction, so nothing comes between the proof and the
-- writes. A row that another transaction holds is skipped. A process of another library locks the
-- row of a consumer for as long as a batch lasts. The other consumers must not wait for that batch.
-- A row may have no worker.
--
-- The rows of units in gone are deleted, unless such a unit exists again. If the unit reappears
-- during the statement, the next poll finds it without a row.
, wanted AS MATERIALIZED (
	SELECT w.unit, w.worker, w.partitions FROM leader, jsonb_to_recordset($5::jsonb) AS w(unit text, worker uuid, partitions int)
), free AS MATERIALIZED (
	SELECT a.consumer_name, w.unit IS NULL AS gone FROM {assignments} AS a LEFT JOIN wanted AS w ON w.unit = a.consumer_name
	WHERE w.unit IS NOT NULL OR a.consumer_name IN (SELECT g.unit FROM leader, jsonb_array_elements_text($6::jsonb) AS g(unit))
	ORDER BY a.consumer_name COLLATE "C" FOR UPDATE OF a SKIP LOCKED
), written AS (
	INSERT INTO {assignments} AS a (consumer_name, worker_id, partitions)
	SELECT w.unit, w.worker, w.partitions FROM wanted AS w
	WHERE w.unit IN (SELECT consumer_name FROM free) OR NOT EXISTS (SELECT FROM {assignments} AS a WHERE a.consumer_name = w.unit)
	ORDER BY w.unit COLLATE "C"
	ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id, partitions = excluded.partitions, updated_at = clock_timestamp()
	WHERE a.worker_id IS DISTINCT FROM excluded.worker_id OR a.partitions IS DISTINCT FROM excluded.partitions
	RETURNING 1
), deleted AS (
	DELETE FROM {assignments} AS a USING free
	WHERE free.gone AND a.consumer_name = free.consumer_name
		AND NOT EXISTS (SELECT FROM {checkpoints} AS c WHERE c.consumer_name = a.consumer_name AND c.split_at IS NULL)
	RETURNING 1
)
SELECT EXISTS (SELECT FROM leader), (SELECT count(*) FROM written) + (SELECT count(*) FROM deleted)
