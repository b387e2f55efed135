package ops_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/ops"
)

func comparison() ops.Comparison {
	return ops.Comparison{Old: "c", New: "d", OldRows: `SELECT id, n FROM old;`, NewRows: `SELECT id, n FROM new`}
}

// Compare lists the rows that only one of the consumers has made, as often as they are there.
func TestCompare(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 5)
	s.open(t, 4, 5)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d', 3)`)
	s.Exec(t, `CREATE TABLE old (id TEXT, n INT, at TIMESTAMPTZ DEFAULT clock_timestamp())`)
	s.Exec(t, `CREATE TABLE new (id TEXT, n INT)`)
	s.Exec(t, `INSERT INTO old (id, n) VALUES ('a', 1), ('b', 2), ('b', 2), ('e', NULL)`)
	s.Exec(t, `INSERT INTO new VALUES ('e', NULL), ('b', 2), ('a', 7), ('f', 0)`)
	found, err := s.Compare(t.Context(), comparison())
	want := ops.Compared{Position: 5, OnlyOld: []string{`{"id":"a","n":1}`, `{"id":"b","n":2}`}, OnlyNew: []string{`{"id":"a","n":7}`, `{"id":"f","n":0}`}}
	if err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("%+v, %v, want %+v", found, err, want)
	}
	same := comparison()
	same.NewRows = same.OldRows
	if found, err := s.Compare(inTime(t), same); err != nil || len(found.OnlyOld)+len(found.OnlyNew) > 0 {
		t.Errorf("of the same rows: %+v, %v", found, err)
	}
	snapshot := comparison()
	snapshot.OldRows, snapshot.NewRows = `SELECT current_setting('transaction_isolation') AS level`, `SELECT 'repeatable read' AS level`
	if found, err := s.Compare(t.Context(), snapshot); err != nil || len(found.OnlyOld)+len(found.OnlyNew) > 0 {
		t.Errorf("the position and the rows are not of one snapshot: %+v, %v", found, err)
	}
	s.Exec(t, `INSERT INTO new SELECT 'more', i FROM generate_series(1, 500) AS i`)
	if found, err := s.Compare(t.Context(), comparison()); err != nil || len(found.OnlyNew) != 100 || len(found.OnlyOld) != 2 {
		t.Errorf("%d and %d rows, %v", len(found.OnlyOld), len(found.OnlyNew), err)
	}
}

// Of a split consumer, the positions of the units count. The row of the whole stays where it was. An
// event that was delivered late is handled.
func TestCompareSplitConsumer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 3)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, split_at, paused_at, paused_by, paused_reason) VALUES ('d', 1, now(), now(), 'partitions', 'split')`)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d#000-7ff', 3), ('d#800-fff', 3)`)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, closed_at) VALUES ('c', gen_random_uuid(), 2, 2, 1, 'late', 3, 3, now())`) // delivered since
	same := comparison()
	same.OldRows, same.NewRows = `SELECT 1 AS n`, `SELECT 1 AS n`
	if _, err := s.Compare(inTime(t), same); err != nil {
		t.Error(err)
	}
}

func TestCompareIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault  string
		change func(c *ops.Comparison)
		says   string
		err    error
	}{
		"no name":       {change: func(c *ops.Comparison) { c.Old = "" }, says: "Old: ", err: ops.ErrInvalid},
		"no consumer":   {change: func(c *ops.Comparison) { c.New = "e" }, says: `"e"`, err: ops.ErrNotFound},
		"no query":      {change: func(c *ops.Comparison) { c.NewRows = " " }, says: "NewRows", err: ops.ErrInvalid},
		"a wrong query": {change: func(c *ops.Comparison) { c.NewRows = `SELECT FROM nowhere` }, says: "nowhere", err: ops.ErrInvalid},
		"a write":       {change: func(c *ops.Comparison) { c.OldRows = `SELECT nextval('events_global_position_seq')` }, says: "read-only"},
		"an event":      {fault: `UPDATE consumer_checkpoints SET last_position = 1 WHERE consumer_name = 'd'`, says: "position 2"},
		"a unit":        {fault: `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d#000-7ff', 2)`, says: "position 3"},
		"a dead letter": {fault: `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts) VALUES ('c', 2, 'Order', 'a', gen_random_uuid(), 'x', 1)`, says: "position 2"},
		"a late event":  {fault: `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position) VALUES ('d', gen_random_uuid(), 3, 9, 2, 'open', 9, 9)`, says: "position 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.append(t, "a", 3)
			s.place(t, 3)
			s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('d', 3)`)
			s.Exec(t, `CREATE TABLE old AS SELECT 'a' AS id, 1 AS n`)
			s.Exec(t, `CREATE TABLE new AS SELECT 'a' AS id, 1 AS n`)
			if c.fault != "" {
				s.Exec(t, c.fault)
			}
			asked := comparison()
			if c.change != nil {
				c.change(&asked)
			}
			refusal{c.says, c.err}.expectSoon(t, func(ctx context.Context) error { _, err := s.Compare(ctx, asked); return err })
		})
	}
}

// refusal is an error of one line that contains a text, and is an error if that is not nil.
type refusal struct {
	says string
	err  error
}

func (r refusal) is(err error) bool {
	return err != nil && (r.err == nil || errors.Is(err, r.err)) && strings.Contains(err.Error(), r.says) && !strings.Contains(err.Error(), "\n")
}

// expect fails the test unless err is the refusal.
func (r refusal) expect(t *testing.T, err error) {
	t.Helper()
	if !r.is(err) {
		t.Errorf("%v, want %v and %q", err, r.err, r.says)
	}
}

// expectSoon calls f, which waits for what does not come, with little time. A first try that its context
// cuts off fails with whatever that led to: f then gets more time.
func (r refusal) expectSoon(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := f(ctx)
		late := ctx.Err() != nil && limit < patience
		cancel()
		if !late || r.is(err) {
			r.expect(t, err)
			return
		}
	}
}

// inTime returns a context for what must succeed within patience.
func inTime(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
