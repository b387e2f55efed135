package progress_test

import (
	"testing"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/progress/progresstest"
	"github.com/pgfrontier/worker/internal/scope"
)

// A change of the scope waits for the current batch. It records the position and the open
// ranges that the batch leaves.
func TestRescopeAfterABatch(t *testing.T) {
	t.Parallel()
	g := progresstest.New(t)
	before, after := scope.Of([]string{"Order"}, 0, "", ""), scope.Of([]string{"Order", "User"}, 0, "", "")
	g.Exec(t, `UPDATE consumer_checkpoints SET scope = $1::jsonb WHERE consumer_name = 'c'`, before.String())
	recorded, err := g.Scopes(t.Context(), g.DB, []string{"c"})
	if err != nil || len(recorded) != 1 {
		t.Fatalf("%+v, %v", recorded, err)
	}
	batch := g.Begin(t)
	for _, statement := range []string{
		`UPDATE consumer_checkpoints SET last_position = 20, revision = revision + 1 WHERE consumer_name = 'c'`,
		`INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
			SELECT consumer_name, worker_id, 15, 16, 2, 'open', 17, 20 FROM consumer_assignments`,
	} {
		if _, err := batch.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		d, ok, err := g.Rescope(t.Context(), g.DB, recorded[0], after, "", "a test")
		if err == nil && (!ok || d.Position != 20) {
			t.Errorf("changed: %v, at %d, want 20", ok, d.Position)
		}
		ended <- err
	}()
	pgtest.AwaitBlocked(t, g.DB)
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var position, open string
	if err := g.DB.QueryRow(`SELECT detail->>'position', detail->>'open' FROM consumer_operations WHERE operation = 'scope'`).Scan(&position, &open); err != nil {
		t.Fatal(err)
	}
	if want := `[{"last": 16, "first": 15}]`; position != "20" || open != want {
		t.Errorf("the record has position %s and the open ranges %s, want 20 and %s", position, open, want)
	}
}
