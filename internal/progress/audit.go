package progress

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// compaction merges neighbouring rows of void positions into one row. Such a row states how
// many positions of its range are void: the positions where the log has no event. So no
// position and no reason is lost, only the batch that passed the position.
//
// Compaction merges plain rows, which a batch wrote when it passed positions. It leaves rows
// of an operator (the nil worker) and rows of doubts. The end of a doubt has a first_seen_at
// from an earlier transaction. The times of a plain row are equal, except that older programs
// read the clock for each of them. A slow program may exceed the tolerance between two
// readings: such a row stays. Between a doubt and its end lies more than the tolerance,
// however short StaleGapThreshold is: a commit and the statements of two batches.
//
// Rows are merged only if no other row begins between them, in the order of positions. So no
// range covers positions that another row counts. The end of a doubt may have any higher id,
// so the search for other rows has no upper bound. Its lower bound is that of the search for
// plain rows: a batch writes its plain row before the rows of its doubts. Rows from before and
// after a reset stay apart, since each pass over the log has rows of its own. Rows from before
// and after a split or a merge stay apart, too. The name of a unit may come back after other
// units had its keys and were reset.
//
// The sums are computed from the deleted rows. So if another statement deletes rows at the
// same time, nothing is counted twice and nothing is lost. The merged row is a new row: a
// program that deletes the old rows for their age does not find it. The merged row keeps the
// last row's id, and so its place among the others.
//
// A repair deletes the rows of the last batch by the batch's transaction. A repair is possible
// while the checkpoint is as that transaction left it. During that time the rows of that
// transaction stay unmerged.
func compaction(t tables.Tables) string {
	skips := t.GapSkips.SQL()
	const isPlain = `(state = 'void' AND created_at >= first_seen_at AND created_at < first_seen_at + interval '100 microseconds'
			AND worker_id <> '00000000-0000-0000-0000-000000000000'::uuid
			AND closed_at IS NOT NULL AND gap_end IS NOT NULL AND missing IS NOT NULL)`
	return `
WITH plain AS (
	SELECT id, gap_position, gap_end, first_seen_at FROM ` + skips + `
	WHERE consumer_name = $1::text AND id >= $2::bigint
		AND id <= (SELECT id FROM ` + skips + ` WHERE consumer_name = $1::text ORDER BY id DESC OFFSET $3::bigint LIMIT 1)
		AND ` + isPlain + `
		AND xmin <> (SELECT xmin FROM ` + t.Checkpoints.SQL() + ` WHERE consumer_name = $1::text)
	ORDER BY id LIMIT $4::bigint
), passes AS (
	SELECT a.*, width_bucket(a.first_seen_at, ARRAY(
		SELECT created_at FROM ` + t.Operations.SQL() + ` WHERE consumer_name = $1::text AND operation = 'reset'
		UNION ALL
		SELECT created_at FROM ` + t.Operations.SQL() + ` WHERE consumer_name = split_part($1::text, '#', 1) AND operation IN ('split', 'merge')
		ORDER BY created_at)) AS pass
	FROM (
		SELECT false AS other, plain.* FROM plain
		UNION ALL
		SELECT true, id, gap_position, gap_end, first_seen_at FROM ` + skips + `
		WHERE consumer_name = $1::text AND id >= $2::bigint AND ` + isPlain + ` IS NOT TRUE
	) AS a
), places AS (
	SELECT *, count(*) FILTER (WHERE other) OVER (ORDER BY pass, gap_position, id) AS others FROM passes
), steps AS (
	SELECT id, gap_position <= lag(gap_end) OVER ascending OR pass <> lag(pass) OVER ascending OR others <> lag(others) OVER ascending AS apart
	FROM places WHERE NOT other WINDOW ascending AS (ORDER BY id)
), runs AS (
	SELECT id, count(*) FILTER (WHERE apart) OVER (ORDER BY id) AS run FROM steps
), gone AS (
	DELETE FROM ` + skips + ` AS s USING runs
	WHERE s.id = runs.id AND runs.run IN (SELECT run FROM runs GROUP BY run HAVING count(*) > 1)
	RETURNING s.*, runs.run
), one AS (
	INSERT INTO ` + skips + ` (id, consumer_name, worker_id, gap_position, gap_end, missing, state,
		skip_to_position, highest_visible_position, first_seen_at, created_at, closed_at)
	SELECT max(id), $1::text, (array_agg(worker_id ORDER BY id DESC))[1], min(gap_position), max(gap_end), sum(missing)::bigint, 'void',
		max(skip_to_position), max(highest_visible_position), min(first_seen_at), min(created_at), max(closed_at)
	FROM gone GROUP BY run
)
SELECT count(*), coalesce(max(id), $2::bigint) FROM plain`
}

// Compact merges a consumer's neighbouring audit rows of void positions, except the newest
// kept rows. It begins at the row with the id after and reads at most chunk rows. done is the
// id where it ended. more reports whether another call may find rows.
func (c Checkpoints) Compact(ctx context.Context, q store.Querier, unit string, after int64, kept, chunk int) (done int64, more bool, err error) {
	var rows int64
	if err := q.QueryRowContext(ctx, c.compact, unit, after, kept, chunk).Scan(&rows, &done); err != nil {
		return after, false, fmt.Errorf("worker: compact the audit of consumer %q: %w", unit, err)
	}
	return done, rows == int64(chunk), nil
}

// CleanChunk is the maximum number of rows that one clean-up statement deletes, so that it
// holds no locks for long.
const CleanChunk = 10_000

// Clean deletes at most CleanChunk closed audit rows that are older than keep. It returns the
// number of deleted rows.
func (c Checkpoints) Clean(ctx context.Context, db store.Querier, keep time.Duration) (int64, error) {
	r, err := db.ExecContext(ctx, c.clean, strconv.FormatInt(keep.Milliseconds(), 10), CleanChunk)
	if err != nil {
		return 0, fmt.Errorf("worker: delete old rows of the audit: %w", err)
	}
	return r.RowsAffected()
}

// insertMarks returns SQL that writes marks of consumer $1 into the audit. It writes only if
// from, the CTE that changes the checkpoint, has a row. The other arguments name parameters,
// and marks is JSON.
//
// All times of a row are the time of that change. So the times of a row of void positions are
// equal. Compaction recognizes a plain row by its equal times.
func insertMarks(t tables.Tables, from, worker, to, head, marks string) string {
	return `
	INSERT INTO ` + t.GapSkips.SQL() + ` (consumer_name, worker_id, gap_position, gap_end, missing, state,
		skip_to_position, highest_visible_position, first_seen_at, created_at, closed_at)
	SELECT $1::text, ` + worker + `::uuid, m.first, m.last, m.missing, m.state, ` + to + `::bigint, ` + head + `::bigint,
		coalesce(m.seen, ` + from + `.updated_at), ` + from + `.updated_at, CASE WHEN m.state <> 'open' THEN ` + from + `.updated_at END
	FROM ` + from + `, jsonb_to_recordset(` + marks + `::jsonb) AS m(first bigint, last bigint, missing bigint, state text, seen timestamptz)`
}

func cleaning(t tables.Tables) string {
	return `
DELETE FROM ` + t.GapSkips.SQL() + ` WHERE id IN (
	SELECT id FROM ` + t.GapSkips.SQL() + `
	WHERE state <> 'open' AND closed_at < clock_timestamp() - make_interval(secs => $1::numeric / 1000)
	ORDER BY closed_at LIMIT $2::bigint)`
}
