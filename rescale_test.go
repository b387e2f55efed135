package worker

import (
	"context"
	"database/sql"
	"testing"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
)

// A part that has handled an event, and one that watches its position and has not
// looked since, stand at one position and are not one: merged, they would handle
// the event again.
func TestMergeLeavesWhatHasAppeared(t *testing.T) {
	t.Parallel()
	d, h := newLedgerStepper(t)
	appendOne(t, d.DB, "a")
	h.lookUpTo(t, 1)
	d.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now()`)
	d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('all#000-7ff', 1), ('all#800-fff', 1)`)
	d.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id, partitions) SELECT unnest(ARRAY['all#000-7ff', 'all#800-fff']), worker_id, 1 FROM consumer_assignments`)
	d.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		SELECT 'all#000-7ff', worker_id, 1, 1, 1, 'open', 1, 1 FROM consumer_assignments LIMIT 1`)
	units := []string{"all#000-7ff", "all#800-fff"}
	merge := func() (r *progress.Rescaled) {
		t.Helper()
		loop := h.newLoop(h.unit(units[1]))
		defer loop.reader.Close()
		loop.progress = &progress.State{Token: h.frontier.Value().Token}
		err := loop.inTransaction(t.Context(), func(ctx context.Context, tx *sql.Tx) (err error) {
			r, err = loop.merge(ctx, tx, "all", partition.All, units, 1)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := merge(); r != nil {
		t.Fatalf("they are merged: %+v", r)
	}
	d.Exec(t, `UPDATE consumer_gap_skips SET state = 'late', closed_at = now()`) // it has looked
	if r := merge(); r == nil {
		t.Error("they are not merged")
	}
}
