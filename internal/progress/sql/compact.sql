-- Merges neighbouring rows of void positions into one row. Such a row states how many positions of
-- its range are void: the positions where the log has no event. So no position and no reason is
-- lost, only the batch that passed the position.
--
-- Compaction merges plain rows, which a batch wrote when it passed positions. It leaves rows of an
-- operator (the nil worker) and rows of doubts. The end of a doubt has a first_seen_at from an
-- earlier transaction. The times of a plain row are equal, except that older programs read the
-- clock for each of them. A slow program may exceed the tolerance between two readings: such a row
-- stays. Between a doubt and its end lies more than the tolerance, however short StaleGapThreshold
-- is: a commit and the statements of two batches.
--
-- Rows are merged only if no other row begins between them, in the order of positions. So no range
-- covers positions that another row counts. The end of a doubt may have any higher id, so the
-- search for other rows has no upper bound. Its lower bound is that of the search for plain rows: a
-- batch writes its plain row before the rows of its doubts. Rows from before and after a reset stay
-- apart, since each pass over the log has rows of its own. Rows from before and after a split or a
-- merge stay apart, too. The name of a unit may come back after other units had its keys and were
-- reset.
--
-- The sums are computed from the deleted rows. So if another statement deletes rows at the same
-- time, nothing is counted twice and nothing is lost. The merged row is a new row: a program that
-- deletes the old rows for their age does not find it. The merged row keeps the last row's id, and
-- so its place among the others.
--
-- A repair deletes the rows of the last batch by the batch's transaction. A repair is possible
-- while the checkpoint is as that transaction left it. During that time the rows of that
-- transaction stay unmerged.
WITH plain AS (
	SELECT id, gap_position, gap_end, first_seen_at FROM {gap_skips}
	WHERE consumer_name = $1::text AND id >= $2::bigint
		AND id <= (SELECT id FROM {gap_skips} WHERE consumer_name = $1::text ORDER BY id DESC OFFSET $3::bigint LIMIT 1)
		AND {is_plain}
		AND xmin <> (SELECT xmin FROM {checkpoints} WHERE consumer_name = $1::text)
	ORDER BY id LIMIT $4::bigint
), passes AS (
	SELECT a.*, width_bucket(a.first_seen_at, ARRAY(
		SELECT created_at FROM {operations} WHERE consumer_name = $1::text AND operation = 'reset'
		UNION ALL
		SELECT created_at FROM {operations} WHERE consumer_name = split_part($1::text, '#', 1) AND operation IN ('split', 'merge')
		ORDER BY created_at)) AS pass
	FROM (
		SELECT false AS other, plain.* FROM plain
		UNION ALL
		SELECT true, id, gap_position, gap_end, first_seen_at FROM {gap_skips}
		WHERE consumer_name = $1::text AND id >= $2::bigint AND {is_plain} IS NOT TRUE
	) AS a
), places AS (
	SELECT *, count(*) FILTER (WHERE other) OVER (ORDER BY pass, gap_position, id) AS others FROM passes
), steps AS (
	SELECT id, gap_position <= lag(gap_end) OVER ascending OR pass <> lag(pass) OVER ascending OR others <> lag(others) OVER ascending AS apart
	FROM places WHERE NOT other WINDOW ascending AS (ORDER BY id)
), runs AS (
	SELECT id, count(*) FILTER (WHERE apart) OVER (ORDER BY id) AS run FROM steps
), gone AS (
	DELETE FROM {gap_skips} AS s USING runs
	WHERE s.id = runs.id AND runs.run IN (SELECT run FROM runs GROUP BY run HAVING count(*) > 1)
	RETURNING s.*, runs.run
), one AS (
	INSERT INTO {gap_skips} (id, consumer_name, worker_id, gap_position, gap_end, missing, state,
		skip_to_position, highest_visible_position, first_seen_at, created_at, closed_at)
	SELECT max(id), $1::text, (array_agg(worker_id ORDER BY id DESC))[1], min(gap_position), max(gap_end), sum(missing)::bigint, 'void',
		max(skip_to_position), max(highest_visible_position), min(first_seen_at), min(created_at), max(closed_at)
	FROM gone GROUP BY run
)
SELECT count(*), coalesce(max(id), $2::bigint) FROM plain
