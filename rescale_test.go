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

// Units are merged if they have all keys of the one that they are to become, stand at
// one position, are this worker's, and run.
func TestWhatMayBeMerged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(parts []progress.Part) []progress.Part
		want   bool
	}{
		"all of it":         {func(parts []progress.Part) []progress.Part { return parts }, true},
		"none":              {func([]progress.Part) []progress.Part { return nil }, false},
		"one is missing":    {func(parts []progress.Part) []progress.Part { return parts[1:] }, false},
		"one is paused":     {func(parts []progress.Part) []progress.Part { parts[2].Paused = true; return parts }, false},
		"one is another's":  {func(parts []progress.Part) []progress.Part { parts[0].Mine = false; return parts }, false},
		"one is behind":     {func(parts []progress.Part) []progress.Part { parts[1].Position--; return parts }, false},
		"one is further":    {func(parts []progress.Part) []progress.Part { parts[2].Position++; return parts }, false},
		"one is no unit":    {func(parts []progress.Part) []progress.Part { parts[1].Unit = "c#5"; return parts }, false},
		"one is there more": {func(parts []progress.Part) []progress.Part { return append(parts, parts[2]) }, false},
	} {
		var parts []progress.Part
		for _, r := range partition.Cut(3) {
			parts = append(parts, progress.Part{Unit: partition.Name("c", r), Position: 9, Mine: true})
		}
		if got := canMerge(partition.All, c.change(parts)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
