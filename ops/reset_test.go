package ops_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops"
)

type resetDetail struct {
	From, To, Settled, Void int64
	Events                  int64 `json:"events_crossed"`
	Again                   int64 `json:"events_again"`
	OpenRanges              int64 `json:"open_ranges_forgotten"`
	DeadLetters             int64 `json:"dead_letters_deleted"`
}

func TestResetBackwardsDeletesRecordsAbove(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		to          int64
		open        string
		deadLetters string
		want        resetDetail
	}{
		"to the beginning":    {to: 0, want: resetDetail{From: 50, OpenRanges: 3, DeadLetters: 2}},
		"below the first":     {to: 9, deadLetters: "5 a false; ", want: resetDetail{From: 50, To: 9, OpenRanges: 3, DeadLetters: 1}},
		"at a range's first":  {to: 10, open: "10-10/1", deadLetters: "5 a false; ", want: resetDetail{From: 50, To: 10, OpenRanges: 2, DeadLetters: 1}},
		"inside a range":      {to: 17, open: "10-17/8", deadLetters: "5 a false; ", want: resetDetail{From: 50, To: 17, OpenRanges: 2, DeadLetters: 1}},
		"at a range's last":   {to: 20, open: "10-20/11", deadLetters: "5 a false; 20 b false; ", want: resetDetail{From: 50, To: 20, OpenRanges: 2}},
		"between two":         {to: 25, open: "10-20/11", deadLetters: "5 a false; 20 b false; ", want: resetDetail{From: 50, To: 25, OpenRanges: 2}},
		"one below the head":  {to: 49, open: "10-20/11 30-30/1 40-49/10", deadLetters: "5 a false; 20 b false; ", want: resetDetail{From: 50, To: 49}},
		"at a range of one":   {to: 30, open: "10-20/11 30-30/1", deadLetters: "5 a false; 20 b false; ", want: resetDetail{From: 50, To: 30, OpenRanges: 1}},
		"below a range's one": {to: 29, open: "10-20/11", deadLetters: "5 a false; 20 b false; ", want: resetDetail{From: 50, To: 29, OpenRanges: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.place(t, 50)
			s.open(t, 10, 20)
			s.open(t, 30, 30)
			s.open(t, 40, 50)
			s.deadLetter(t, 5, "a", 1)
			s.deadLetter(t, 20, "b", 1)
			s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d', 50)`)
			s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
				VALUES ('d', gen_random_uuid(), 1, 50, 50, 'open', 50, 50), ('c', gen_random_uuid(), 1, 50, 50, 'void', 50, 50)`)
			s.Exec(t, `INSERT INTO consumer_dead_letters SELECT 'd', global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts FROM consumer_dead_letters`)
			if err := s.Reset(t.Context(), "c", c.to, by); err != nil {
				t.Fatal(err)
			}
			s.expectProgress(t, c.to, 1)
			s.expectSpans(t, "open", c.open)
			if got := s.deadLetters(t); got != c.deadLetters {
				t.Errorf("dead letters %q, want %q", got, c.deadLetters)
			}
			if n := s.count(t, `SELECT count(*) FROM consumer_gap_skips WHERE consumer_name = 'd' AND missing = 50 OR state = 'void'`); n != 2 {
				t.Errorf("of what is another consumer's or closed, %d rows are left of 2", n)
			}
			if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters WHERE consumer_name = 'd'`); n != 2 {
				t.Errorf("another consumer has %d dead letters, want 2", n)
			}
			var detail resetDetail
			if s.last(t, &detail); detail != c.want {
				t.Errorf("recorded %+v, want %+v", detail, c.want)
			}
		})
	}
}

// The operation's detail has the number of events to handle again, up to the maximum count.
func TestResetCountsEventsToHandleAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT p, 'Order', 'a', p, gen_random_uuid(), 'Happened', '' FROM generate_series(1, 100005) AS p WHERE p <> 7`)
	for from, want := range map[int64]int64{5: 3, 9: 6, 100_002: 99_999, 100_003: 100_000, 100_004: 100_000} {
		s.Exec(t, `DELETE FROM consumer_checkpoints`)
		s.place(t, from)
		if err := s.Reset(t.Context(), "c", 2, by); err != nil {
			t.Fatal(err)
		}
		var detail resetDetail
		if s.last(t, &detail); detail.Again != want {
			t.Errorf("from %d back to 2, %d come again, want %d", from, detail.Again, want)
		}
	}
}

func TestResetForwardsAuditsGaps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from, to int64
		void     string
		want     resetDetail
	}{
		"events only":           {from: 0, to: 3, want: resetDetail{Events: 3}},
		"one gap":               {from: 2, to: 8, void: "4-5/2", want: resetDetail{Events: 4, Void: 2}},
		"two gaps":              {from: 1, to: 12, void: "4-10/4", want: resetDetail{Events: 7, Void: 4}},
		"from inside a gap":     {from: 4, to: 7, void: "5-5/1", want: resetDetail{Events: 2, Void: 1}},
		"to inside a gap":       {from: 7, to: 9, void: "9-9/1", want: resetDetail{Events: 1, Void: 1}},
		"a gap and a half":      {from: 3, to: 9, void: "4-9/3", want: resetDetail{Events: 3, Void: 3}},
		"nothing but a gap":     {from: 8, to: 10, void: "9-10/2", want: resetDetail{Void: 2}},
		"up to what is settled": {from: 10, to: 14, void: "13-14/2", want: resetDetail{Events: 2, Void: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.append(t, "a", 3) // 1 to 3
			s.burn(t, 2)        // 4, 5
			s.append(t, "b", 3) // 6 to 8
			s.burn(t, 2)        // 9, 10
			s.append(t, "b", 2) // 11, 12
			s.burn(t, 2)        // 13, 14
			s.append(t, "b", 5) // 15 to 19
			s.settle(t, 14)
			s.place(t, c.from)
			if c.from > 0 {
				s.open(t, 1, 1) // stays
			}
			s.deadLetter(t, 1, "a", 1) // stays
			if err := s.Reset(t.Context(), "c", c.to, by); err != nil {
				t.Fatal(err)
			}
			s.expectProgress(t, c.to, 1)
			s.expectSpans(t, "void", c.void)
			if open := s.spans(t, "open"); c.from > 0 && open != "1-1/1" {
				t.Errorf("the open ranges are %q now", open)
			}
			if got := s.deadLetters(t); got != "1 a false; " {
				t.Errorf("the dead letters are %q now", got)
			}
			if n := s.count(t, `SELECT count(*) FROM consumer_gap_skips WHERE state = 'void' AND worker_id <> '00000000-0000-0000-0000-000000000000'`); n > 0 {
				t.Error("the audit names a worker")
			}
			c.want.From, c.want.To, c.want.Settled = c.from, c.to, 14
			var detail resetDetail
			if s.last(t, &detail); detail != c.want {
				t.Errorf("recorded %+v, want %+v", detail, c.want)
			}
		})
	}
}

func TestResetRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 9)
	s.place(t, 3)
	refuse := func(to, settled int64) {
		t.Helper()
		var e *ops.NotSettledError
		if err := s.Reset(t.Context(), "c", to, by); !errors.As(err, &e) || e.To != to || e.Settled != settled {
			t.Errorf("to %d: %v", to, err)
		}
	}
	refuse(4, 0) // no frontier has run
	s.settle(t, 7)
	refuse(8, 7)
	refuse(9_000_000_000_000_000_000, 7)
	// The settled position is unknown after the sequence was reset.
	s.Exec(t, `ALTER SEQUENCE events_global_position_seq RESTART WITH 100`)
	refuse(4, 0)
	if err := s.Reset(t.Context(), "c", 3, by); !errors.Is(err, ops.ErrAtPosition) {
		t.Errorf("to where it is: %v", err)
	}
	if err := s.Reset(t.Context(), "c", -1, by); !errors.Is(err, ops.ErrInvalid) || !strings.Contains(err.Error(), "position -1 is below 0") {
		t.Errorf("below 0: %v", err)
	}
	s.expectUntouched(t, 3)
}

// A reset backwards delivers again exactly the events above the position.
func TestResetBackwardsBesideAWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 6)
	s.work(t, &ledger{})
	s.awaitHandled(t, "1 2 3 4 5 6")
	if err := s.Reset(t.Context(), "c", 4, by); err != nil {
		t.Fatal(err)
	}
	s.awaitHandled(t, "1 2 3 4 5 6 5 6")
	s.append(t, "a", 1)
	s.awaitHandled(t, "1 2 3 4 5 6 5 6 7")
}

// A reset forwards skips exactly the crossed events.
func TestResetForwardsBesideAWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.burn(t, 2)
	s.append(t, "a", 3) // 6 to 8
	stop := s.work(t, &ledger{})
	s.awaitHandled(t, "1 2 3 6 7 8")
	s.awaitSettled(t, 8)
	stop()
	s.Exec(t, `DELETE FROM ledger`)
	if err := s.Reset(t.Context(), "c", 1, by); err != nil {
		t.Fatal(err)
	}
	if err := s.Reset(t.Context(), "c", 6, by); err != nil {
		t.Fatal(err)
	}
	s.expectSpans(t, "void", "4-5/2 4-5/2") // the worker's, and the operator's
	s.work(t, &ledger{})
	s.awaitHandled(t, "7 8")
}

// A late event below the new position is delivered once. A late event above it is delivered
// again, whether it was delivered before or not.
func TestResetAndLateEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	low := s.begin(t, "low", 1)   // 1
	s.append(t, "a", 1)           // 2
	high := s.begin(t, "high", 1) // 3
	seen := s.begin(t, "seen", 1) // 4
	s.append(t, "a", 1)           // 5
	s.work(t, &ledger{})
	s.awaitHandled(t, "2 5")
	end(t, seen.Commit)
	s.awaitHandled(t, "2 5 4")
	s.expectSpans(t, "open", "1-1/1 3-3/1")
	if err := s.Reset(t.Context(), "c", 2, by); err != nil {
		t.Fatal(err)
	}
	s.awaitHandled(t, "2 5 4 4 5")
	await(t, "the position in doubt to be passed again", func() bool { return s.spans(t, "open") == "1-1/1 3-3/1" })
	end(t, low.Commit)
	s.awaitHandled(t, "2 5 4 4 5 1")
	end(t, high.Commit)
	s.awaitHandled(t, "2 5 4 4 5 1 3")
	await(t, "no position to be open", func() bool { return s.spans(t, "open") == "" })
	// After a reset to 0, no late event remains.
	if err := s.Reset(t.Context(), "c", 0, by); err != nil {
		t.Fatal(err)
	}
	s.awaitHandled(t, "2 5 4 4 5 1 3 1 2 3 4 5")
}

// A reset forwards crosses settled events only, and keeps the open ranges.
func TestResetForwardsKeepsOpenRanges(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	late := s.begin(t, "late", 1) // 1
	s.append(t, "a", 3)           // 2 to 4
	stop := s.work(t, &ledger{})
	s.awaitHandled(t, "2 3 4")
	stop()
	if err := s.Reset(t.Context(), "c", 3, by); err != nil {
		t.Fatal(err)
	}
	var beyond *ops.NotSettledError
	if err := s.Reset(context.Background(), "c", 4, by); !errors.As(err, &beyond) || beyond.Settled != 0 {
		t.Fatalf("over positions that are not settled: %v", err)
	}
	end(t, late.Commit)
	s.Exec(t, `DELETE FROM ledger`)
	s.settle(t, 4)
	if err := s.Reset(t.Context(), "c", 4, by); err != nil {
		t.Fatal(err)
	}
	s.work(t, &ledger{})
	s.awaitHandled(t, "1")
	await(t, "no position to be open", func() bool { return s.spans(t, "open") == "" })
	s.expectSpans(t, "late", "1-1/1")
}
