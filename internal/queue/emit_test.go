package queue

import (
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
)

// The records of positions in doubt stay, since a late event would otherwise find no record and
// enqueue nothing.
func TestEmitRecordsInDoubtStay(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	if err := migrations.Apply(ctx, s.d.DB, nil); err != nil {
		t.Fatal(err)
	}
	events, err := tables.Parse(store.Names{})
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
		if _, err := s.Raise(ctx, s.d.DB, events); err != nil {
			t.Fatal(err)
		}
	}
	emit(4, false)
	emit(7, false)
	emit(5, true)
}

// A crash or a promotion may undo a claim that the server has confirmed. The next claim has the
// same attempt, but is another run.
func TestClaimLostInCrash(t *testing.T) {
	s := newStage(t)
	id := s.add(NewJob{Kind: "a"})[0]
	before := s.claim(s.demand(1, "a"))[0]
	s.d.Exec(t, `UPDATE jobs SET state = 'available', attempt = 0, claim = NULL, claimed_by = NULL, claimed_at = NULL, started_at = NULL WHERE id = $1::bigint`, id)
	again := s.claim(s.demand(1, "a"))[0]
	if again.Attempt != before.Attempt {
		t.Fatalf("attempt %d, then %d: they are to be the same", before.Attempt, again.Attempt)
	}
	if done, err := s.Complete(t.Context(), s.d.DB, []Run{before.Run}); len(done) != 0 || err != nil {
		t.Errorf("the claim that was taken back completes %v, %v", done, err)
	}
	if done, err := s.Complete(t.Context(), s.d.DB, []Run{again.Run}); len(done) != 1 || err != nil {
		t.Errorf("the other completes %v, %v", done, err)
	}
}
