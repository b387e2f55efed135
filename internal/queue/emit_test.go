package queue

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
)

// What a consumer has passed in doubt may come late: until then the notes stay from
// there on, or the event would enqueue nothing.
func TestNotesOfEventsInDoubtStay(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	if err := migrations.Apply(ctx, s.d.DB, nil); err != nil {
		t.Fatal(err)
	}
	events, err := tables.Parse(tables.Default, "")
	if err != nil {
		t.Fatal(err)
	}
	emit := func(position int64, want bool) {
		t.Helper()
		id, err := s.Emit(ctx, s.d.DB, NewJob{Kind: "a"}, "mailer", position, 1)
		if err != nil || (id != 0) != want {
			t.Errorf("the event at %d enqueues job %d, %v; want one: %v", position, id, err, want)
		}
	}
	emit(4, true)
	emit(7, true)
	s.d.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('mailer', 10)`)
	s.d.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, skip_to_position, highest_visible_position, state)
		VALUES ('mailer', $1::uuid, 5, 5, 1, 6, 10, 'open')`, uuid.NewString())
	for range 2 {
		if err := s.Raise(ctx, s.d.DB, events); err != nil {
			t.Fatal(err)
		}
	}
	emit(4, false)
	emit(7, false)
	emit(5, true)
}
