-- Raises for each emitter the position up to which its events are settled. This is its checkpoint,
-- or lower if events below it may still be delivered, late or from the dead letters. It removes the
-- rows of the first five thousand events below the position of an earlier call. A transaction that
-- enqueues either holds a lock on the position's row, or has not read the new position. In both
-- cases the rows below it still exist. A checkpoint at the highest bigint is left of a renamed
-- consumer, and says nothing of events.
WITH old AS MATERIALIZED (
	SELECT emitter, position FROM {emitted_through} ORDER BY emitter FOR UPDATE SKIP LOCKED
), settled AS MATERIALIZED (
	SELECT c.consumer_name AS emitter, least(c.last_position,
		(SELECT min(g.gap_position) - 1 FROM {gap_skips} AS g WHERE g.consumer_name = c.consumer_name AND g.state = 'open'),
		(SELECT min(l.global_position) - 1 FROM {dead_letters} AS l WHERE l.consumer_name = c.consumer_name)) AS position
	FROM {checkpoints} AS c WHERE c.last_position < 9223372036854775807 AND EXISTS (SELECT FROM {emitted} AS e WHERE e.emitter = c.consumer_name)
), raised AS (
	UPDATE {emitted_through} AS t SET position = s.position FROM settled AS s JOIN old USING (emitter)
	WHERE t.emitter = s.emitter AND t.position < s.position
), first AS (
	INSERT INTO {emitted_through} (emitter, position)
	SELECT emitter, position FROM settled WHERE emitter NOT IN (SELECT emitter FROM {emitted_through})
	ON CONFLICT (emitter) DO NOTHING
), bound AS MATERIALIZED (
	SELECT emitter, least(position, (SELECT e.position FROM {emitted} AS e WHERE e.emitter = old.emitter ORDER BY e.position OFFSET 5000 LIMIT 1)) AS position FROM old
)
DELETE FROM {emitted} AS e USING bound AS b WHERE e.emitter = b.emitter AND e.position <= b.position
