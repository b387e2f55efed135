package ops_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/ops"
)

// handledAll gives a unit the receipt of all events of the log from first to last.
func (s site) handledAll(t testing.TB, unit string, first, last int64) {
	t.Helper()
	rows, err := s.DB.QueryContext(t.Context(), `SELECT global_position, event_id FROM events WHERE global_position BETWEEN $1 AND $2`, first, last)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var sum receipt.Sum
	for rows.Next() {
		var e receipt.Event
		if err := rows.Scan(&e.Position, &e.ID); err != nil {
			t.Fatal(err)
		}
		sum = sum.Plus(e.Sum())
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `INSERT INTO consumer_receipts (consumer_name, unit, first_position, last_position, events, positions, hash, partition_key, scope)
		VALUES ('c', $1, $2, $3, $4, $5, $6, '', '{}')`, unit, first, last, sum.Events, sum.Positions, sum.Hash)
}

// prove proves the consumer "c".
func (s site) prove(t testing.TB) *ops.Proof {
	t.Helper()
	p, err := s.Prove(t.Context(), "c", nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A consumer without receipts is not proven, also if its first batch had a dead letter only.
func TestProveWithoutReceipts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if _, err := s.Prove(t.Context(), "c", nil); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("without a checkpoint: %v", err)
	}
	s.append(t, "a", 4)
	s.place(t, 2)
	for _, r := range []any{"{3,2,0,0,0}", nil} {
		s.Exec(t, `UPDATE consumer_checkpoints SET receipt = $1::text::bigint[]`, r)
		if p := s.prove(t); p.From != 3 || p.To != 2 || p.Events != 0 || len(p.Unproven) > 0 {
			t.Errorf("with receipt %v: %+v", r, p)
		}
	}
	// Skips begin no receipts.
	for _, position := range []int64{3, 4} {
		if err := s.SkipEvent(t.Context(), "c", position, by); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_receipts WHERE event_id IS NULL`); n != 0 {
		t.Errorf("%d regions were written, %s", n, s.receipts(t))
	}
}

// Right after a split, the parts have no receipts yet. A dead letter of one that is discarded is no
// missing event.
func TestProveAfterASplit(t *testing.T) {
	t.Parallel()
	s, _, high := splitSite(t, "")
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 8 WHERE split_at IS NULL`)
	s.Exec(t, `DELETE FROM consumer_dead_letters`)
	s.handledAll(t, "c", 1, 7)
	s.Exec(t, `UPDATE consumer_receipts SET last_position = 8`)
	s.deadLetter(t, 8, high, 1)
	s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'c#800-fff', event_id = (SELECT event_id FROM events WHERE events.global_position = 8)`)
	if p := s.prove(t); !p.Holds() || p.Events != 7 || p.Pending != 1 {
		t.Errorf("with a dead letter: %+v", p)
	}
	if err := s.DiscardDeadLetter(t.Context(), "c", 8, by); err != nil {
		t.Fatal(err)
	}
	if p := s.prove(t); !p.Holds() || p.Events != 8 || p.Pending != 0 {
		t.Errorf("discarded: %+v", p)
	}
}

// With its own key, the events above the lowest partition are not judged. A skip of one partition may
// be over an event of the other, and a reset of the other keeps the receipt of the skip.
func TestProveWithAKey(t *testing.T) {
	t.Parallel()
	s, _, _ := splitSite(t, "k") // at 3 and 5
	s.Exec(t, `DELETE FROM consumer_dead_letters`)
	s.handledAll(t, "c", 1, 3)
	s.Exec(t, `UPDATE consumer_checkpoints SET scope = '{}'`)
	if err := s.SkipEvent(t.Context(), "c#000-7ff", 4, by); err != nil {
		t.Fatal(err)
	}
	s.handledAll(t, "c#800-fff", 4, 5)
	if p := s.prove(t); !p.Holds() || p.To > 3 {
		t.Errorf("at different positions: %+v", p)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 4 WHERE consumer_name = 'c#800-fff'`)
	s.Exec(t, `DELETE FROM consumer_receipts WHERE last_position = 5`)
	s.handledAll(t, "c#800-fff", 4, 4)
	if p := s.prove(t); !p.Holds() || p.To != 4 || p.Events != 4 {
		t.Errorf("at one position: %+v", p)
	}
	if err := s.Reset(t.Context(), "c#800-fff", 3, by); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_receipts WHERE unit = ''`); n != 1 {
		t.Errorf("the reset of another partition has left %d receipts of the skip", n)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 4 WHERE consumer_name = 'c#800-fff'`) // without a receipt
	if p := s.prove(t); p.Holds() {
		t.Errorf("position 4 was passed by hand after the reset: %+v", p)
	}
}

// A proof that ctx cuts off says so.
func TestProveIsCutOff(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 2)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := s.Prove(ctx, "c", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A rename back retires what the first one has left, which does not end the consumer: its resets still
// explain positions without receipts.
func TestProveAfterARename(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 4)
	s.settle(t, 4)
	s.place(t, 2)
	s.handledAll(t, "c", 1, 2)
	if err := s.Reset(t.Context(), "c", 4, by); err != nil {
		t.Fatal(err)
	}
	if p := s.prove(t); !p.Holds() || len(p.Unproven) != 1 {
		t.Errorf("before: %+v", p)
	}
	if err := errors.Join(s.Rename(t.Context(), "c", "d", by), s.Retire(t.Context(), "c", by), s.Rename(t.Context(), "d", "c", by)); err != nil {
		t.Fatal(err)
	}
	if p := s.prove(t); !p.Holds() || len(p.Unproven) != 1 {
		t.Errorf("renamed back: %+v", p)
	}
}

// What a former consumer of the name had in doubt excuses no missing event.
func TestProveOfANewConsumerOfTheName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 4)
	s.place(t, 4)
	s.handledAll(t, "c", 1, 1)
	s.handledAll(t, "c", 3, 4)
	s.Exec(t, `UPDATE consumer_receipts SET first_position = 2 WHERE first_position = 3`)
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
		VALUES ('c', 'scope', '{"from": {"types": ["Other"]}, "position": 3, "open": [{"first": 2, "last": 2}]}', 'w', 'r')`)
	if p := s.prove(t); !p.Holds() {
		t.Errorf("in doubt: %+v", p)
	}
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('c', 'retire', '{}', 'ann', 'a test')`)
	if p := s.prove(t); p.Holds() {
		t.Errorf("of a new consumer, event 2 was not handled: %+v", p)
	}
}
