package ops_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/pgfrontier/worker/ops"
)

// entry is a transaction that changed the checkpoint.
type entry struct {
	before, after, revision int64
	handled                 []int64
	replayed                []int64  // of the handled ones
	kind                    ops.Kind // empty: a batch
	detail                  []byte
}

// keepJournal records each transaction that changes a checkpoint.
func (s *stage) keepJournal(t *testing.T) {
	s.Exec(t, `CREATE TABLE journal (tx BIGINT PRIMARY KEY, before BIGINT, after BIGINT, revision BIGINT)`)
	s.Exec(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO journal AS j VALUES (txid_current(), OLD.last_position, NEW.last_position, NEW.revision)
		ON CONFLICT (tx) DO UPDATE SET after = excluded.after, revision = excluded.revision;
		RETURN NULL; END $$`)
	s.Exec(t, `CREATE TRIGGER keep AFTER UPDATE ON consumer_checkpoints FOR EACH ROW EXECUTE FUNCTION keep()`)
}

func (s *stage) journal(t *testing.T) (all []entry) {
	rows, err := s.DB.Query(`SELECT j.before, j.after, j.revision, coalesce(o.operation, ''), coalesce(o.detail, '{}')::text,
			(SELECT coalesce(jsonb_agg(position ORDER BY id), '[]')::text FROM ledger AS l WHERE l.tx = j.tx),
			(SELECT coalesce(jsonb_agg(position ORDER BY id), '[]')::text FROM ledger AS l WHERE l.tx = j.tx AND replay)
		FROM journal AS j LEFT JOIN consumer_operations AS o ON o.xmin::text::bigint = j.tx % 4294967296
		ORDER BY j.revision`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var e entry
		var handled, replayed []byte
		if err := rows.Scan(&e.before, &e.after, &e.revision, &e.kind, &e.detail, &handled, &replayed); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(json.Unmarshal(handled, &e.handled), json.Unmarshal(replayed, &e.replayed)); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// judge follows the journal. due are the events that the consumer has passed, and neither
// handled nor skipped.
func (s *stage) judge(t *testing.T) {
	events := s.positions(t)
	var at int64
	due := map[int64]bool{}
	again := map[int64]bool{}
	for i, e := range s.journal(t) {
		if e.before != at || e.revision != int64(i)+1 {
			t.Fatalf("entry %d: %+v begins at %d, revision %d, after %d", i, e, e.before, e.revision, at)
		}
		passed := within(events, at, e.after)
		switch {
		case e.kind == "":
			s.seen["batch"]++
			for _, p := range passed {
				due[p] = true
			}
			for _, p := range e.handled {
				if !due[p] {
					t.Fatalf("entry %d: %+v handles %d, which is not due", i, e, p)
				}
				delete(due, p)
				if p <= at {
					s.seen["late"]++
				}
				if again[p] {
					s.seen["again"]++
				}
				if replay := slices.Contains(e.replayed, p); replay != again[p] {
					t.Fatalf("entry %d: %+v handles %d with Replay %v", i, e, p, replay)
				}
				again[p] = true
			}
		case len(e.handled) > 0:
			t.Fatalf("entry %d: %s handles %v", i, e.kind, e.handled)
		case e.kind == ops.KindReset:
			s.judgeReset(t, e, len(passed), due)
		case e.kind == ops.KindSkip:
			s.judgeSkip(t, e, passed, due)
		case e.after != at:
			t.Fatalf("entry %d: %s goes from %d to %d", i, e.kind, at, e.after)
		default:
			s.seen[string(e.kind)]++
		}
		at = e.after
	}
	if left := slices.Sorted(maps.Keys(due)); len(left) > 0 {
		t.Fatalf("never handled, nor skipped: %v of %v", left, events)
	}
	if last := events[len(events)-1]; at < last {
		t.Fatalf("ended at %d, the log at %d", at, last)
	}
}

func (s *stage) judgeReset(t *testing.T, e entry, crossed int, due map[int64]bool) {
	var d resetDetail
	if err := json.Unmarshal(e.detail, &d); err != nil || d.From != e.before || d.To != e.after || d.Events != int64(crossed) {
		t.Fatalf("%+v crosses %d events, and records %s (%v)", e, crossed, e.detail, err)
	}
	if d.To > d.From {
		s.seen["reset forward"]++
		s.seen["events crossed"] += crossed
		if d.Void != d.To-d.From-d.Events {
			t.Fatalf("%+v records %s", e, e.detail)
		}
		s.seen["void crossed"] += int(d.Void)
		return
	}
	s.seen["reset back"]++
	s.seen["open forgotten"] += int(d.OpenRanges)
	maps.DeleteFunc(due, func(p int64, _ bool) bool { return p > e.after })
}

func (s *stage) judgeSkip(t *testing.T, e entry, passed []int64, due map[int64]bool) {
	var d skipDetail
	if err := json.Unmarshal(e.detail, &d); err != nil || d.From != e.before {
		t.Fatalf("%+v records %s (%v)", e, e.detail, err)
	}
	for _, p := range passed { // the last is the skipped one, the others were not visible yet
		due[p] = true
	}
	if !due[d.Position] || d.Late == (e.after > e.before) {
		t.Fatalf("%+v skips %d, which was not due", e, d.Position)
	}
	delete(due, d.Position)
	if d.Late {
		s.seen["skip late"]++
	} else {
		s.seen["skip"]++
	}
}

func (s *stage) positions(t *testing.T) (all []int64) {
	var text []byte
	s.scan(t, `SELECT jsonb_agg(global_position ORDER BY global_position)::text FROM events`, &text)
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// within returns the positions in (after, to].
func within(positions []int64, after, to int64) (in []int64) {
	for _, p := range positions {
		if after < p && p <= to {
			in = append(in, p)
		}
	}
	return in
}
