package ops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store/consumer"
)

// What the consumer has not handled is not recomputed: dead letters, skipped events, positions in doubt,
// events before its start and above its checkpoint.
func TestVerifyLeavesOutWhatWasNotHandled(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := newSite(t)
	s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
	s.append(t, "a", 9)
	s.place(t, 3)
	s.Exec(t, `INSERT INTO totals VALUES ('a', 6, 'xxxxxx')`)
	if err := s.SkipEvent(t.Context(), "c", 4, by); err != nil {
		t.Fatal(err)
	}
	s.place(t, 8) // 1 to 8 without 4, and without
	s.open(t, 6, 6)
	if found, err := s.Verify(t.Context(), verification(right)); err != nil || found.Events != 6 || len(found.Missing)+len(found.Unexpected) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 3 FROM events WHERE global_position = 8`)
	late := struct {
		totals
		starts
	}{right, 2}
	if found, err := s.Verify(t.Context(), verification(late)); err != nil || found.Events != 3 {
		t.Errorf("%+v, %v", found, err)
	}
}

// What has changed the rows counts, whatever effects the consumer has had: of four events, handled are in the
// rows.
func TestVerifyAfterOperations(t *testing.T) {
	t.Parallel()
	do := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		start   int64 // of the code
		history func(t *testing.T, s site)
		handled int    // 0: Verify refuses
		says    string // in the refusal
	}{
		"begun at a position": {0, func(t *testing.T, s site) {
			do(t, s.Begin(t.Context(), "c", 1, by))
			s.place(t, 4)
		}, 3, ""},
		"begun, whatever the code says": {3, func(t *testing.T, s site) {
			do(t, s.Begin(t.Context(), "c", 1, by))
			s.place(t, 4)
		}, 3, ""},
		"a shadow without a dead letter that was discarded": {0, func(t *testing.T, s site) {
			do(t, s.Shadow(t.Context(), "c", by))
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			do(t, s.DiscardDeadLetter(t.Context(), "c", 2, by))
		}, 3, ""},
		"many discarded": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			s.deadLetter(t, 3, "a", 0)
			_, err := s.DiscardDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{}, 10, by)
			do(t, err)
		}, 2, ""},
		"took over from one that has discarded an event": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			do(t, s.DiscardDeadLetter(t.Context(), "c", 2, by))
			s.Exec(t, `UPDATE consumer_checkpoints SET consumer_name = 'old'`)
			s.Exec(t, `UPDATE consumer_operations SET consumer_name = 'old'`)
			do(t, s.Shadow(t.Context(), "c", by))
			s.place(t, 4)
			do(t, s.Switch(t.Context(), "old", "c", by, nil))
		}, 4, ""},
		"in a replay": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Replay(t.Context(), "c", "Order", "a", by))
			s.Exec(t, `DELETE FROM consumer_dead_letters WHERE global_position < 3`) // these are done
		}, 0, "is handling events"},
		"discarded in a replay": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Replay(t.Context(), "c", "Order", "a", by))
			do(t, s.DiscardDeadLetter(t.Context(), "c", 2, by))
			s.Exec(t, `DELETE FROM consumer_dead_letters`)
		}, 0, "it is not known"},
		"all are dead letters": {0, func(t *testing.T, s site) {
			s.place(t, 1)
			s.deadLetter(t, 1, "a", 1)
		}, 0, "it has handled no event"},
		"skipped, and then replayed": {0, func(t *testing.T, s site) {
			s.place(t, 1)
			do(t, s.SkipEvent(t.Context(), "c", 2, by))
			s.place(t, 4)
			do(t, s.Replay(t.Context(), "c", "Order", "a", by))
			s.Exec(t, `DELETE FROM consumer_dead_letters`)
		}, 4, ""},
		"a rebuild is not at its end": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Reset(t.Context(), "c", 0, by))
			s.place(t, 3)
		}, 0, "is handling events"},
		"an event failed in a rebuild": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Reset(t.Context(), "c", 0, by))
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
		}, 3, ""},
		"set back below its start": {3, func(t *testing.T, s site) {
			s.place(t, 4)
			do(t, s.Reset(t.Context(), "c", 1, by))
			s.place(t, 4)
		}, 3, ""},
		"crossed by a Reset": {0, func(t *testing.T, s site) {
			s.place(t, 1)
			do(t, s.Reset(t.Context(), "c", 3, by))
			s.place(t, 4)
		}, 2, ""},
		"not selected, in a range of the audit": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.Exec(t, `UPDATE consumer_checkpoints SET scope = '{"types": ["Order", "Other"]}', scope_since = 0`)
			s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
				VALUES ('c', 'scope', '{"from": {"types": ["Other"]}, "position": 2, "open": []}', 'w', 'r')`)
			s.open(t, 1, 3)
			s.Exec(t, `UPDATE consumer_gap_skips SET state = 'void', closed_at = now()`)
		}, 2, ""},
		"a dead letter of another consumer": {0, func(t *testing.T, s site) {
			s.place(t, 4)
			s.deadLetter(t, 2, "a", 1)
			s.Exec(t, `UPDATE consumer_dead_letters SET consumer_name = 'other'`)
		}, 4, ""},
		"set back by a worker": {0, func(t *testing.T, s site) {
			s.place(t, 3)
			s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('c', 'repair', '{"from": 4, "to": 1}', 'w', 'r')`)
		}, 0, "is handling events"},
		"begun by a former consumer of the name": {0, func(t *testing.T, s site) {
			do(t, s.Begin(t.Context(), "c", 1, by))
			do(t, s.Retire(t.Context(), "c", by))
			s.place(t, 4)
		}, 4, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
			s.append(t, "a", 4)
			s.settle(t, 4)
			c.history(t, s)
			s.Exec(t, `INSERT INTO totals VALUES ('a', $1::int, repeat('x', $1::int))`, c.handled)
			found, err := s.Verify(t.Context(), verification(struct {
				totals
				starts
			}{totals{count(1, "x"), forgetTotals}, starts(c.start)}))
			if c.handled == 0 {
				if !errors.Is(err, ops.ErrNotFound) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%+v, %v", found, err)
				}
			} else if err != nil || len(found.Missing)+len(found.Unexpected) > 0 || found.Events != c.handled {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
}

type atHead struct{}

func (atHead) StartAt() consumer.Start { return consumer.AtHead() }

// A consumer that began at the head has handled no event before.
func TestVerifyOfOneThatBeganAtHead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
	s.append(t, "a", 4)
	s.place(t, 4)
	s.Exec(t, `UPDATE consumer_checkpoints SET scope = '{}', scope_since = 2`)
	s.Exec(t, `INSERT INTO totals VALUES ('a', 2, 'xx')`)
	v := verification(struct {
		totals
		atHead
	}{totals{count(1, "x"), forgetTotals}, atHead{}})
	if found, err := s.Verify(t.Context(), v); err != nil || found.Events != 2 || len(found.Missing)+len(found.Unexpected) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

type starts int64

func (s starts) StartAt() consumer.Start { return consumer.After(int64(s)) }

// A shadow began at the first event, whatever its code says. A consumer that has become one by a
// Switch began where its code says.
func TestVerifyOfShadows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		operations []string
		handled    int
	}{"began as a shadow": {[]string{"shadow"}, 4}, "was switched": {[]string{"switch"}, 1}, "was a shadow before": {[]string{"shadow", "retire"}, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.Exec(t, `CREATE TABLE totals (id text PRIMARY KEY, n bigint NOT NULL, log text NOT NULL)`)
			s.append(t, "a", 4)
			s.place(t, 4)
			s.Exec(t, `UPDATE consumer_checkpoints SET effects = '`+shadowEffects+`'`)
			for _, operation := range c.operations {
				s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('c', $1, '{}', 'ann', 'a test')`, operation)
			}
			s.Exec(t, `INSERT INTO totals VALUES ('a', $1::int, repeat('x', $1::int))`, c.handled)
			v := verification(struct {
				totals
				starts
			}{totals{count(1, "x"), forgetTotals}, 3})
			if found, err := s.Verify(t.Context(), v); err != nil || len(found.Missing)+len(found.Unexpected) > 0 || found.Events != c.handled {
				t.Errorf("%+v, %v", found, err)
			}
		})
	}
}
