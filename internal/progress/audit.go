package progress

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// compaction makes one row of neighbouring rows of void positions. Such a row
// says that so many positions of its range are void: those where the log has
// no event. So no position and no reason is lost, only which batch went past it.
//
// It takes the plain rows, which a batch wrote when it went past positions. It
// leaves those of an operator (the nil worker), and those that tell of doubts.
// How a doubt ended was first seen in an earlier transaction. A plain row's
// times are equal; older programs read the clock for each of them. A slow one
// may have left more than the tolerance between two readings: such a row stays.
// Between a doubt and its end is more than the tolerance, however short
// StaleGapThreshold is: a commit and the statements of two batches.
//
// Rows become one only if no other row begins between them, in the order of
// positions: no range goes over positions that another row counts. The end of a
// doubt may have any higher id, so the search for other rows has no upper bound.
// It needs no lower one than the search for plain rows: a batch writes its plain
// row before those of its doubts. Rows from before and after a reset stay apart:
// each pass over the log has rows of its own. So do those from before and after
// a split or a merge: the name of a unit may come back after others had its keys,
// and were reset.
//
// The sums are of what was deleted, so whatever else deletes rows at the same
// time, nothing is counted twice and nothing is lost. The row is a new one: a
// program that deletes the old ones for their age does not find it. It keeps
// the last one's id, and so its place among the others.
//
// A repair deletes what the last batch wrote, by its transaction. It can happen
// for as long as the checkpoint is as that transaction left it, and for as long
// that transaction's rows stay as they are.
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

// Compact makes one row of a consumer's neighbouring audit rows of void
// positions, but for the newest rows, which it keeps. It begins at the row with
// the id after, goes over chunk rows at most, and returns where it ended. more:
// the next call may have something to do.
func (c Checkpoints) Compact(ctx context.Context, q store.Querier, unit string, after int64, kept, chunk int) (done int64, more bool, err error) {
	var rows int64
	if err := q.QueryRowContext(ctx, c.compact, unit, after, kept, chunk).Scan(&rows, &done); err != nil {
		return after, false, fmt.Errorf("worker: compact the audit of consumer %q: %w", unit, err)
	}
	return done, rows == int64(chunk), nil
}

// CleanChunk bounds a clean-up statement, so that it holds no locks for long.
const CleanChunk = 10_000

// Clean deletes at most cleanChunk closed audit rows that are older than keep,
// and returns how many it deleted.
func (c Checkpoints) Clean(ctx context.Context, db store.Querier, keep time.Duration) (int64, error) {
	r, err := db.ExecContext(ctx, c.clean, strconv.FormatInt(keep.Milliseconds(), 10), CleanChunk)
	if err != nil {
		return 0, fmt.Errorf("worker: delete old rows of the audit: %w", err)
	}
	return r.RowsAffected()
}

// insertMarks writes marks of consumer $1 into the audit if from, the part that
// changes the checkpoint, has a row. The others are parameters; marks is JSON.
//
// The time of that change is all times of a row, so that the times of a row of
// void positions are equal. Compaction knows it by that.
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
