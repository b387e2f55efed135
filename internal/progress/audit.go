package progress

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/store"
)

// audit are the statements that keep the audit small.
type audit struct{ compact, clean string }

// Compact merges a consumer's neighbouring audit rows of void positions, except the newest
// kept rows. It begins at the row with the id after and reads at most chunk rows. done is the
// id where it ended. more reports whether another call may find rows.
func (a audit) Compact(ctx context.Context, q store.Querier, unit string, after int64, kept, chunk int) (done int64, more bool, err error) {
	var rows int64
	if err := q.QueryRowContext(ctx, a.compact, unit, after, kept, chunk).Scan(&rows, &done); err != nil {
		return after, false, fmt.Errorf("worker: compact the audit of consumer %q: %w", unit, err)
	}
	return done, rows == int64(chunk), nil
}

// CleanChunk is the maximum number of rows that one clean-up statement deletes, so that it
// holds no locks for long.
const CleanChunk = 10_000

// Clean deletes at most CleanChunk closed audit rows that are older than keep. It returns the
// number of deleted rows.
func (a audit) Clean(ctx context.Context, db store.Querier, keep time.Duration) (int64, error) {
	r, err := db.ExecContext(ctx, a.clean, strconv.FormatInt(keep.Milliseconds(), 10), CleanChunk)
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
