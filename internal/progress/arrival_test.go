package progress_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/progress/progresstest"
)

// A consumer that is split is where the last of its units is. Its own row stays where
// it was: ahead of units that were reset, and behind those that went on.
func TestHowFarASplitConsumerIs(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `UPDATE consumer_checkpoints SET split_at = now(), paused_at = now()`) // at 10
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c#000-7ff', 4), ('c#800-fff', 20)`)
	arrived := func(position int64, want bool) {
		t.Helper()
		if a, _, err := g.Arrived(t.Context(), g.DB, "c", position); err != nil || a.Handled != want || a.Paused {
			t.Errorf("at position %d: %+v, %v; want it handled: %v", position, a, err, want)
		}
	}
	arrived(4, true)
	arrived(5, false)
	g.Exec(t, `UPDATE consumer_checkpoints SET last_position = 15 WHERE consumer_name = 'c#000-7ff'`)
	arrived(15, true)
	arrived(16, false)
}
