package progress_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
)

// A split consumer has the position of its last unit. Its own row keeps the position of the
// split: ahead of units that were reset, and behind units that went on.
func TestArrivalOfASplitConsumer(t *testing.T) {
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

// If a unit has not handled an event, neither has its consumer. Units of another consumer do
// not count, whatever its name is.
func TestArrivalNeedsEveryUnit(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, split_at, paused_at) VALUES ('a_c', 0, now(), now()), ('abc', 0, now(), now())`)
	g.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('a_c#000-7ff', 20), ('a_c#800-fff', 20), ('abc#000-7ff', 1), ('abc#800-fff', 1)`)
	g.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts, replay)
		SELECT unit, p, 'T', 'a', gen_random_uuid(), 'E', 1, p = 6 FROM (VALUES ('a_c#800-fff', 5), ('a_c#800-fff', 6), ('abc#800-fff', 7), ('a_c', 7)) AS l(unit, p)`)
	g.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		SELECT unit, gen_random_uuid(), p, p, 1, 'open', 20, 20 FROM (VALUES ('a_c#000-7ff', 8), ('abc#000-7ff', 9), ('a_c', 9)) AS s(unit, p)`)
	for position, want := range map[int64]progress.Arrival{
		4: {Handled: true}, 5: {DeadLetter: true}, 6: {Replayed: true}, 7: {Handled: true}, 8: {Open: true}, 9: {Handled: true}, 20: {Handled: true}, 21: {},
	} {
		want.Position, want.Split = 20, true
		if a, _, err := g.Arrived(t.Context(), g.DB, "a_c", position); err != nil || a != want {
			t.Errorf("at position %d: %+v, %v; want %+v", position, a, err, want)
		}
	}
}
