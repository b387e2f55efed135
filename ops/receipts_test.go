package ops_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// receipts returns the rows of the receipts as text: unit, positions, and the count of events or
// "event".
func (s site) receipts(t testing.TB) (all string) {
	t.Helper()
	s.scan(t, `SELECT coalesce(string_agg(unit || ' ' || first_position || '-' || last_position || CASE WHEN event_id IS NULL THEN '/' || events ELSE ' event' END, ', '
		ORDER BY unit COLLATE "C", last_position, event_id IS NOT NULL), '') FROM consumer_receipts`, &all)
	return all
}

func (s site) expectReceipts(t testing.TB, want string) {
	t.Helper()
	if got := s.receipts(t); got != want {
		t.Errorf("the receipts are %q, want %q", got, want)
	}
}

// received gives units receipts up to their checkpoints.
func (s site) received(t testing.TB) {
	t.Helper()
	s.Exec(t, `UPDATE consumer_checkpoints SET receipt = ARRAY[1, last_position, last_position, 6, 7] WHERE split_at IS NULL`)
}

// region returns the receipt in the checkpoint of the consumer "c".
func (s site) region(t testing.TB) (text string) {
	t.Helper()
	s.scan(t, `SELECT coalesce(receipt::text, '') FROM consumer_checkpoints WHERE consumer_name = 'c'`, &text)
	return text
}

// receive inserts a receipt of a unit. A count of -1 makes it that of a single event.
func (s site) receive(t testing.TB, unit string, first, last, events int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_receipts (consumer_name, unit, first_position, last_position, events, positions, hash, event_id, partition_key)
		VALUES (split_part($1::text, '#', 1), $1::text, $2::bigint, $3::bigint, greatest($4::bigint, 0), 6, 7, CASE WHEN $4::bigint < 0 THEN gen_random_uuid() END, '')`, unit, first, last, events)
}

// expectEvents fails unless each receipt of a single event has the ID that the log has.
func (s site) expectEvents(t testing.TB) {
	t.Helper()
	if n := s.count(t, `SELECT count(*) FROM consumer_receipts AS r WHERE event_id IS NOT NULL
		AND NOT EXISTS (SELECT FROM events AS e WHERE e.event_id = r.event_id AND e.global_position = r.first_position)`); n > 0 {
		t.Errorf("%d receipts have an ID that the log has not", n)
	}
}

// A reset forwards ends the region. The positions that it crosses have no receipt.
func TestResetForwardsEndsTheRegion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 6)
	s.settle(t, 6)
	s.place(t, 2)
	s.received(t)
	s.Exec(t, `UPDATE consumer_checkpoints SET partition_key = 'k', scope = '{"types": ["Order"]}'`)
	for _, to := range []int64{4, 5} { // the second time there is no region to end
		if err := s.Reset(t.Context(), "c", to, by); err != nil {
			t.Fatal(err)
		}
		s.expectReceipts(t, "c 1-2/2")
		if r := s.region(t); r != "" {
			t.Errorf("the region is %s", r)
		}
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_receipts WHERE consumer_name = 'c' AND positions = 6 AND hash = 7 AND partition_key = 'k' AND scope = '{"types": ["Order"]}'`); n != 1 {
		t.Error("the region has lost its sum, its key or its scope")
	}
}

// A reset backwards deletes what is proven above the position, since it is handled again.
func TestResetBackwardsDeletesReceipts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 9)
	s.received(t)
	for _, unit := range []string{"c", "c#000-7ff", "cx", "d"} { // the unit c#000-7ff was merged
		s.receive(t, unit, 1, 4, 4)
		s.receive(t, unit, 2, 2, -1)
		s.receive(t, unit, 5, 5, -1)
		s.receive(t, unit, 3, 8, 5)
	}
	if err := s.Reset(t.Context(), "c", 4, by); err != nil {
		t.Fatal(err)
	}
	const others = ", cx 2-2 event, cx 1-4/4, cx 5-5 event, cx 3-8/5, d 2-2 event, d 1-4/4, d 5-5 event, d 3-8/5"
	s.expectReceipts(t, "c 2-2 event, c 1-4/4, c#000-7ff 2-2 event, c#000-7ff 1-4/4"+others)
	if r := s.region(t); r != "" {
		t.Errorf("the region is %s", r)
	}
}

// A reset of one unit leaves the receipts of the other units that are there.
func TestResetOfAUnitLeavesReceiptsOfOthers(t *testing.T) {
	t.Parallel()
	s, _, _ := splitSite(t, "")
	s.received(t)
	for _, unit := range []string{"c", "c#000-7ff", "c#800-fff"} {
		s.receive(t, unit, 1, 3, 3)
	}
	if err := s.Reset(t.Context(), "c#800-fff", 2, by); err != nil {
		t.Fatal(err)
	}
	s.expectReceipts(t, "c#000-7ff 1-3/3")
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE consumer_name = CASE WHEN receipt IS NULL THEN 'c#800-fff' ELSE 'c#000-7ff' END`); n != 2 {
		t.Error("the wrong unit has lost its region")
	}
}

// An event that an operator skips has a receipt, so that it is not taken for a missing one.
func TestSkippedEventsHaveReceipts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 2) // 1, 2
	s.burn(t, 2)        // 3, 4
	s.append(t, "b", 2) // 5, 6
	s.place(t, 2)
	s.received(t)
	s.Exec(t, `UPDATE consumer_checkpoints SET partition_key = 'k', scope = '{"types": ["Order"]}'`)
	if err := s.SkipEvent(t.Context(), "c", 6, by); !errors.As(err, new(*ops.NotNextError)) {
		t.Fatal(err)
	}
	s.expectReceipts(t, "")
	if err := s.SkipEvent(t.Context(), "c", 5, by); err != nil {
		t.Fatal(err)
	}
	s.expectReceipts(t, "c 1-2/2, c 3-5/0, c 5-5 event")
	if r := s.region(t); r != "" {
		t.Errorf("the region is %s", r)
	}

	// A late event leaves the region.
	s.received(t)
	s.open(t, 1, 1)
	before := s.region(t)
	if err := s.SkipEvent(t.Context(), "c", 1, by); err != nil {
		t.Fatal(err)
	}
	s.expectReceipts(t, "c 1-1 event, c 1-2/2, c 3-5/0, c 5-5 event")
	if r := s.region(t); r != before {
		t.Errorf("the region was %s, and is %s", before, r)
	}
	s.expectEvents(t)
	if n := s.count(t, `SELECT count(*) FROM consumer_receipts WHERE consumer_name = 'c' AND partition_key = 'k' AND scope = '{"types": ["Order"]}'`); n != 4 {
		t.Errorf("%d receipts have the key and the scope of the consumer, want 4", n)
	}
}

// A discarded event has a receipt, unless it was handled before.
func TestDiscardedEventsHaveReceipts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 5)
	s.place(t, 9)
	s.Exec(t, `UPDATE consumer_checkpoints SET partition_key = 'k', scope = '{"types": ["Order"]}'`)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts, received)
		SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 'boom', 1, global_position IN (2, 4) FROM events`)
	for _, position := range []int64{1, 2} {
		if err := s.DiscardDeadLetter(t.Context(), "c", position, by); err != nil {
			t.Fatal(err)
		}
	}
	s.expectReceipts(t, "c 1-1 event")
	if n, err := s.DiscardDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{AggregateType: "Order"}, 2, by); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	s.expectReceipts(t, "c 1-1 event, c 3-3 event")
	if n, err := s.RetryDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{AggregateType: "Order"}, 2, by); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	s.expectReceipts(t, "c 1-1 event, c 3-3 event")
	s.expectEvents(t)
	if n := s.count(t, `SELECT count(*) FROM consumer_receipts WHERE consumer_name = 'c' AND partition_key = 'k' AND scope = '{"types": ["Order"]}'`); n != 2 {
		t.Errorf("%d receipts have the key and the scope of the consumer, want 2", n)
	}
}

// A replay marks the events that the receipts have. A dead letter that was not handled keeps none.
func TestReplayKnowsWhatIsReceived(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 3)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 'boom', 1 FROM events WHERE global_position = 2`)
	for range 2 {
		if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
			t.Fatal(err)
		}
		var got string
		if s.scan(t, `SELECT string_agg(global_position || ' ' || received, ', ' ORDER BY global_position) FROM consumer_dead_letters`, &got); got != "1 true, 2 false, 3 true" {
			t.Errorf("received are %s", got)
		}
	}
}

// Each event is in the receipts once, whether it was handled, was a dead letter before, or is handled
// again in a replay, also if that fails at first.
func TestReplayedEventsAreReceivedOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 4) // 1 to 4
	s.append(t, "b", 1)
	var refused atomic.Int64
	refused.Store(2)
	l := &forgetter{}
	l.before = func(e store.PersistedEvent) error {
		if e.GlobalPosition == refused.Load() {
			return errors.New("refused")
		}
		return nil
	}
	s.work(t, l, worker.WithMaxConsecutiveFailures(2), worker.WithFailurePolicy(worker.FailDeadLetter))
	s.awaitDelivered(t, "1 5")
	await(t, "three dead letters", func() bool { return s.count(t, `SELECT count(*) FROM consumer_dead_letters`) == 3 })
	sum := func() (text string) {
		s.scan(t, `SELECT sum(n) || ' events, positions ' || sum(p) FROM (
			SELECT receipt[3], receipt[4] FROM consumer_checkpoints WHERE receipt IS NOT NULL
			UNION ALL SELECT events, positions FROM consumer_receipts WHERE event_id IS NULL
			UNION ALL SELECT 1, first_position FROM consumer_receipts WHERE event_id IS NOT NULL) AS all_of_them(n, p)`, &text)
		return text
	}
	if got, want := sum(), "2 events, positions 6"; got != want {
		t.Errorf("beside dead letters: %s, want %s", got, want)
	}
	if err := s.DiscardDeadLetter(t.Context(), "c", 3, by); err != nil {
		t.Fatal(err)
	}
	refused.Store(4)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	await(t, "a dead letter", func() bool {
		return s.count(t, `SELECT count(*) FROM consumer_dead_letters WHERE error = 'refused' AND global_position = 4 AND retry_at IS NULL`) == 1
	})
	if got, want := sum(), "4 events, positions 11"; got != want { // 4 is still a dead letter
		t.Errorf("after a replay that has failed: %s, want %s", got, want)
	}
	refused.Store(0)
	if err := s.RetryDeadLetters(t.Context(), "c", 4, by); err != nil {
		t.Fatal(err)
	}
	s.awaitNoDeadLetters(t)
	if err := s.Replay(t.Context(), "c", "Order", "a", by); err != nil {
		t.Fatal(err)
	}
	s.awaitNoDeadLetters(t)
	if got, want := sum(), "5 events, positions 15"; got != want {
		t.Errorf("in the end: %s, want %s; delivered %s", got, want, strings.TrimSpace(s.delivered(t)))
	}
	s.expectEvents(t)
}
