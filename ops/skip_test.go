package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

type skipDetail struct {
	Position, From, Void, Open int64
	Late                       bool
	AggregateID                string `json:"aggregate_id"`
	EventType                  string `json:"event_type"`
}

func TestSkipNext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settled    int64
		void, open string
		want       skipDetail
	}{
		"nothing is settled":        {settled: 0, open: "3-6/4", want: skipDetail{Open: 4}},
		"settled at the checkpoint": {settled: 2, open: "3-6/4", want: skipDetail{Open: 4}},
		"settled in the gap":        {settled: 4, void: "3-4/2", open: "5-6/2", want: skipDetail{Void: 2, Open: 2}},
		"settled up to the event":   {settled: 6, void: "3-6/4", want: skipDetail{Void: 4}},
		"settled beyond it":         {settled: 9, void: "3-6/4", want: skipDetail{Void: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.append(t, "a", 2) // 1, 2
			s.burn(t, 4)        // 3 to 6
			s.append(t, "b", 3) // 7 to 9
			s.settle(t, c.settled)
			s.place(t, 2)
			if err := s.SkipEvent(t.Context(), "c", 7, by); err != nil {
				t.Fatal(err)
			}
			s.expectProgress(t, 7, 1)
			s.expectSpans(t, "void", c.void)
			s.expectSpans(t, "open", c.open)
			c.want.Position, c.want.From, c.want.AggregateID, c.want.EventType = 7, 2, "b", "Happened"
			var detail skipDetail
			if s.last(t, &detail); detail != c.want {
				t.Errorf("recorded %+v, want %+v", detail, c.want)
			}
			if err := s.SkipEvent(t.Context(), "c", 8, by); err != nil { // without a gap
				t.Fatal(err)
			}
			s.expectProgress(t, 8, 2)
			s.expectSpans(t, "void", c.void)
			s.expectSpans(t, "open", c.open)
		})
	}
}

func TestSkipLateSplitsTheRange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, last int64
		open        string
	}{
		"the whole range": {3, 3, ""},
		"its first":       {3, 8, "4-8/5"},
		"its last":        {1, 3, "1-2/2"},
		"its middle":      {1, 9, "1-2/2 4-9/6"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.burn(t, 2)
			s.append(t, "a", 1) // 3
			s.place(t, 20)
			s.open(t, c.first, c.last)
			s.open(t, 12, 14)
			if err := s.SkipEvent(t.Context(), "c", 3, by); err != nil {
				t.Fatal(err)
			}
			s.expectProgress(t, 20, 1)
			s.expectSpans(t, "open", strings.TrimSpace(c.open+" 12-14/3"))
			s.expectSpans(t, "late", "3-3/1")
			s.expectSpans(t, "void", "")
			if n := s.count(t, `SELECT count(*) FROM consumer_gap_skips WHERE first_seen_at <> '2020-02-02'`); n > 0 {
				t.Error("when the range was first seen is lost")
			}
			want := skipDetail{Position: 3, From: 20, Late: true, AggregateID: "a", EventType: "Happened"}
			var detail skipDetail
			if s.last(t, &detail); detail != want {
				t.Errorf("recorded %+v, want %+v", detail, want)
			}
		})
	}
}

func TestSkipRefusesOtherThanNext(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 2) // 1, 2
	s.burn(t, 2)        // 3, 4
	s.append(t, "a", 2) // 5, 6
	s.settle(t, 6)
	s.place(t, 2)
	refuse := func(position, next int64, inDoubt bool, says string) {
		t.Helper()
		var e *ops.NotNextError
		err := s.SkipEvent(t.Context(), "c", position, by)
		if !errors.As(err, &e) || e.Position != position || e.Next != next || e.InDoubt != inDoubt || (e.NextType == "Happened") != (next > 0) || !strings.Contains(err.Error(), says) {
			t.Errorf("position %d: %v", position, err)
		}
	}
	refuse(1, 5, false, "it has been passed: the checkpoint is 2, and the next event is at position 5")
	refuse(2, 5, false, "it has been passed")
	refuse(-7, 5, false, "it has been passed")
	refuse(math.MinInt64, 5, false, "it has been passed")
	refuse(3, 5, false, "it does not come next")
	refuse(6, 5, false, "it does not come next")
	refuse(99, 5, false, "it does not come next")
	s.place(t, 6)
	refuse(7, 0, false, "there is no event for it at the moment")
	s.open(t, 3, 4)
	refuse(3, 0, true, "no event has appeared there yet")
	refuse(2, 0, false, "it has been passed")
	s.open(t, 2, 2) // it has appeared, and comes before new events
	refuse(7, 2, false, "the next event is at position 2")
	s.expectSpans(t, "open", "2-2/1 3-4/2")
	s.expectUntouched(t, 6)
}

// A consumer that fails at an event continues without it, whether the event is late or not.
func TestSkipBesideAWorker(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"the next event": false, "a late event": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			failed := make(chan int64, 1)
			bad := &ledger{before: func(e store.PersistedEvent) error {
				if e.AggregateID != "bad" {
					return nil
				}
				select {
				case failed <- e.GlobalPosition:
				default:
				}
				return errors.New("cannot handle this")
			}}
			stop := s.work(t, bad, worker.WithBatchSize(1))
			s.append(t, "a", 1) // 1
			rest := "2 4"
			if late {
				tx := s.begin(t, "bad", 1) // 2
				s.append(t, "a", 1)        // 3
				s.awaitHandled(t, "1 3")
				end(t, tx.Commit)
				rest = "3 4"
			} else {
				s.append(t, "a", 1)   // 2
				s.append(t, "bad", 1) // 3
			}
			position := <-failed
			s.append(t, "a", 1) // 4
			await(t, "a heartbeat to say that it is stuck there", func() bool {
				err := s.SkipEvent(t.Context(), "c", position, by)
				var early *ops.NotStuckError
				if err != nil && (!errors.As(err, &early) || early.Stuck != 0) {
					t.Fatal(err)
				}
				return err == nil
			})
			s.awaitHandled(t, "1 "+rest)
			await(t, "no position to be open", func() bool { return s.spans(t, "open") == "" })
			s.awaitCheckpoint(t, 4)
			stop()
			if got := s.handled(t); got != "1 "+rest {
				t.Errorf("handled %s", got)
			}
			var detail skipDetail
			if s.last(t, &detail); detail.Position != position || detail.Late != late {
				t.Errorf("recorded %+v", detail)
			}
		})
	}
}

// For a running consumer, SkipEvent accepts the event at which its worker reports it stuck. A
// worker that reports nothing, or another condition, may be stuck at any event.
func TestSkipRefusesUnlessStuck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.settle(t, 3)
	s.place(t, 0)
	const refused, stuck = "is not stuck", "stuck at position 3: the events before"
	for name, is := range map[string]struct {
		consumers, change, want string
	}{
		"there":                  {`[{"Name": "d", "Stuck": 3}, {"Name": "c", "Stuck": 1, "LastError": "x"}]`, ``, ""},
		"elsewhere":              {`[{"Name": "c", "Stuck": 3, "LastError": "x"}]`, ``, stuck},
		"nowhere":                {`[{"Name": "c", "Stuck": 0}]`, ``, refused},
		"where is not known":     {`[{"Name": "c", "Stuck": 0, "LastError": "x"}]`, ``, ""},
		"an earlier build":       {`[{"Name": "c"}]`, ``, ""},
		"of another consumer":    {`[{"Name": "d", "Stuck": 3}]`, ``, ""},
		"no list":                {`{"Name": "c", "Stuck": 3}`, ``, ""},
		"no number":              {`[{"Name": "c", "Stuck": "3"}]`, ``, ""},
		"no status":              {`[]`, `UPDATE worker_nodes SET status = NULL`, ""},
		"of a dead worker":       {`[{"Name": "c", "Stuck": 3}]`, `UPDATE worker_nodes SET heartbeat_at = clock_timestamp() - interval '31 seconds'`, ""},
		"of one with more time":  {`[{"Name": "c", "Stuck": 3}]`, `UPDATE worker_nodes SET heartbeat_at = clock_timestamp() - interval '31 seconds', heartbeat_timeout = '1 hour'`, stuck},
		"of one that has it not": {`[{"Name": "c", "Stuck": 3}]`, `DELETE FROM consumer_assignments`, ""},
		"while it is paused":     {`[{"Name": "c", "Stuck": 3}]`, `UPDATE consumer_checkpoints SET paused_at = clock_timestamp(), paused_by = 'x', paused_reason = 'y'`, ""},
	} {
		s.Exec(t, `DELETE FROM consumer_assignments`)
		s.Exec(t, `DELETE FROM worker_nodes`)
		s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, consumers, status) VALUES ('`+uuid.Nil.String()+`', clock_timestamp(), '{c}', jsonb_build_object('Consumers', '`+is.consumers+`'::jsonb))`)
		s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', '`+uuid.Nil.String()+`')`)
		s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 0, paused_at = NULL, paused_by = NULL, paused_reason = NULL`)
		if is.change != "" {
			s.Exec(t, is.change)
		}
		err := s.SkipEvent(t.Context(), "c", 1, by)
		var e *ops.NotStuckError
		if errors.As(err, &e) != (is.want != "") || is.want != "" && !strings.Contains(err.Error(), is.want) || is.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := s.count(t, `SELECT last_position FROM consumer_checkpoints`), int64(1); is.want == "" && got != want || is.want != "" && got != 0 {
			t.Errorf("%s: the checkpoint is %d", name, got)
		}
	}
}

// A worker that has just moved from one failing event to the next has not reported the next one
// yet.
func TestSkipTwoEventsInARow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 2)
	s.settle(t, 2)
	s.place(t, 1)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, consumers, status) VALUES ('`+uuid.Nil.String()+`', clock_timestamp(), '{c}', '{"Consumers": [{"Name": "c", "Stuck": 1, "LastError": "x"}]}')`)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ('c', '`+uuid.Nil.String()+`')`)
	err := s.SkipEvent(t.Context(), "c", 2, by)
	var e *ops.NotStuckError
	if !errors.As(err, &e) || e.Stuck != 1 || !strings.Contains(err.Error(), "if the event at 2 has failed since, try again after the next heartbeat") {
		t.Errorf("%v", err)
	}
}

// Positions in doubt below a skipped event are still watched. Their events are delivered if
// they appear; otherwise the positions become void.
func TestSkipOverPositionsInDoubt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	appears := s.begin(t, "x", 1) // 1
	never := s.begin(t, "y", 1)   // 2
	s.append(t, "bad", 1)         // 3
	s.append(t, "a", 1)           // 4
	s.place(t, 0)
	if err := s.SkipEvent(t.Context(), "c", 3, by); err != nil {
		t.Fatal(err)
	}
	s.expectSpans(t, "open", "1-2/2")
	s.work(t, &ledger{})
	s.awaitHandled(t, "4")
	end(t, appears.Commit)
	s.awaitHandled(t, "4 1")
	end(t, never.Rollback)
	await(t, "no position to be open", func() bool { return s.spans(t, "open") == "" })
	s.expectSpans(t, "late", "1-1/1")
	s.expectSpans(t, "void", "2-2/1")
}

// SkipEvent reads the settled position before the next event. Between the two reads, an event
// may appear in the gap and become settled. The earlier settled position does not make it void,
// and the later read finds it.
func TestSkipDoesNotMarkAppearedEventVoid(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 2)           // 1, 2
	late := s.begin(t, "late", 1) // 3
	s.append(t, "b", 1)           // 4
	s.settle(t, 2)
	s.place(t, 2)
	hold := s.hold(t, "consumer_checkpoints_settled")
	skipped := make(chan error, 1)
	go func() { skipped <- s.SkipEvent(context.Background(), "c", 4, by) }()
	await(t, "the operator to come to the settled row", func() bool {
		return s.count(t, `SELECT count(*) FROM pg_locks WHERE `+pgtest.Here+` AND NOT granted AND relation = 'consumer_checkpoints_settled'::regclass`) > 0
	})
	end(t, late.Commit)
	if _, err := hold.Exec(`UPDATE consumer_checkpoints_settled SET settled = 4`); err != nil {
		t.Fatal(err)
	}
	end(t, hold.Commit)
	var e *ops.NotNextError
	if err := <-skipped; !errors.As(err, &e) || e.Next != 3 {
		t.Errorf("skipping position 4: %v, want that 3 comes next", err)
	}
	s.expectSpans(t, "void", "")
	s.expectUntouched(t, 2)
}

// hold locks a table until the transaction ends.
func (s site) hold(t *testing.T, table string) *sql.Tx {
	t.Helper()
	tx, err := s.DB.Begin()
	if err == nil {
		_, err = tx.Exec(`LOCK TABLE ` + table)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() }) // a no-op after its end
	return tx
}
