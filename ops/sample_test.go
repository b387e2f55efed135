package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	"pgregory.net/rapid"
)

// drawn is a Verification of drawn aggregates.
func drawn(of consumer.Forgetter) ops.Verification {
	v := verification(of)
	v.AggregateID = ""
	return v
}

// A sample verifies each aggregate once, and finds the one whose row was changed.
func TestVerifySample(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	for name, of := range map[string]consumer.Forgetter{"event": right, "batch": bulkTotals{right}, "partitions": partedTotals{right}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := verifySite(t, of)
			before := s.state(t)
			found, err := s.VerifySample(t.Context(), drawn(of), 50) // draws both, but for a chance of 2e-9
			if err != nil || found.Aggregates != 2 || found.Events != 6 || len(found.Wrong) > 0 || found.MoreWrong > 0 || found.Rebuild <= 0 {
				t.Errorf("%+v, %v", found, err)
			}
			if after := s.state(t); after != before {
				t.Errorf("VerifySample changed\n%s\nto\n%s", before, after)
			}
			s.Exec(t, `UPDATE totals SET n = 5 WHERE id = 'b'`)
			found, err = s.VerifySample(t.Context(), drawn(of), 50)
			want := []ops.Verified{{AggregateType: "Order", AggregateID: "b", Events: 2, First: 4, Last: 5, Missing: []string{`{"id":"b","n":2,"log":"xx"}`}, Unexpected: []string{`{"id":"b","n":5,"log":"xx"}`}}}
			if err != nil || found.Aggregates != 2 || !reflect.DeepEqual(found.Wrong, want) {
				t.Errorf("%+v, %v, want %+v", found, err, want)
			}
		})
	}
}

// After the rows alone were restored from a backup, a sample finds the aggregates with later events.
func TestVerifySampleOfRestoredRows(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	s.Exec(t, `UPDATE totals SET n = 3, log = 'xxx' WHERE id = 'a'`) // as they were at position 5
	found, err := s.VerifySample(t.Context(), drawn(right), 50)
	if err != nil || found.Aggregates != 2 || len(found.Wrong) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	if w := found.Wrong[0]; w.AggregateID != "a" || w.Last != 6 {
		t.Errorf("%+v", w)
	}
}

// The code of a new build tells which aggregates change, which event fails, and how long a rebuild takes.
func TestVerifySampleOfNewBuild(t *testing.T) {
	t.Parallel()
	s := verifySite(t, totals{count(1, "x"), forgetTotals})
	found, err := s.VerifySample(t.Context(), drawn(totals{func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.GlobalPosition == 5 {
			return errors.New("refused")
		}
		return count(10, "y")(ctx, tx, e)
	}, forgetTotals}), 50)
	if err != nil || found.Aggregates != 2 || found.Events != 5 || len(found.Wrong) != 2 {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, w := range found.Wrong {
		if fails := w.AggregateID == "b"; fails != (w.Err != nil) || fails != (w.Position == 5) || fails != (len(w.Missing) == 0) {
			t.Errorf("%+v", w)
		}
	}
}

// slowTotals selects types, and takes a time for each event.
type slowTotals struct {
	totals
	types []string
}

func (s slowTotals) AggregateTypes() []string { return s.types }

// The estimate grows with the number of events in the scope of the code.
func TestVerifySampleEstimatesRebuild(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	const slow = 20 * time.Millisecond
	slowed := totals{func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep($1::float8)`, slow.Seconds())
		return errors.Join(err, right.add(ctx, tx, e))
	}, forgetTotals}
	s.Exec(t, `INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT 'Other', 'o', i, gen_random_uuid(), 't', '{}' FROM generate_series(1, 994) AS i`)
	for _, c := range []struct {
		of               consumer.Forgetter
		position, events int64
	}{{slowed, 6, 6}, {slowed, 900, 900}, {slowTotals{slowed, nil}, 900, 900}, {slowTotals{slowed, []string{"Order"}}, 900, 6}, {slowTotals{slowed, []string{"Other", "Order"}}, 900, 900}} {
		s.place(t, c.position)
		if n, err := s.EventsInScope(t.Context(), c.of); err != nil || n != c.events {
			t.Errorf("%d events, %v, want %d", n, err, c.events)
		}
		found, err := s.VerifySample(t.Context(), drawn(c.of), 1)
		if least := time.Duration(c.events) * slow; err != nil || found.Rebuild < least {
			t.Errorf("%d events of %v: %+v, %v", c.events, slow, found, err)
		}
	}
}

// The estimate is proportional to the time and to the number of events.
func TestRebuildTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := time.Duration(rapid.Int64Range(1, int64(time.Second)).Draw(t, "one"))
		n := rapid.IntRange(1, 1_000_000).Draw(t, "n")
		all := rapid.Int64Range(0, 1_000_000).Draw(t, "all")
		want := one * time.Duration(all)
		if got := ops.RebuildTime(one*time.Duration(n), n, all); (got - want).Abs() > want/1_000_000+1 {
			t.Fatalf("%v, want %v", got, want)
		}
	})
	if got := ops.RebuildTime(0, 0, 7); got != 0 {
		t.Errorf("without events: %v", got)
	}
}

// What was found before an error is returned with it. Aggregates without handled events are left out.
func TestVerifySampleEnds(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	ctx, cancel := context.WithCancel(t.Context())
	ends := totals{func(ctx context.Context, tx *sql.Tx, e store.PersistedEvent) error {
		if e.AggregateID == "b" {
			cancel()
		}
		return right.add(ctx, tx, e)
	}, forgetTotals}
	s.Exec(t, `UPDATE totals SET n = 5 WHERE id = 'a'`)
	found, err := s.VerifySample(ctx, drawn(ends), 10_000)
	if !errors.Is(err, context.Canceled) || found.Aggregates != len(found.Wrong) || found.Aggregates > 1 || (found.Aggregates == 1) != (found.Rebuild > 0) {
		t.Errorf("%+v, %v", found, err)
	}
	deadLetter := func(which string) {
		s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
			SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 3 FROM events WHERE `+which)
	}
	deadLetter(`aggregate_id = 'b'`)
	if found, err := s.VerifySample(t.Context(), drawn(right), 50); err != nil || found.Aggregates != 1 || found.Events != 4 {
		t.Errorf("b has dead letters: %+v, %v", found, err)
	}
	deadLetter(`aggregate_id = 'a'`)
	if found, err := s.VerifySample(t.Context(), drawn(right), 50); !errors.Is(err, ops.ErrNotFound) || found.Aggregates > 0 {
		t.Errorf("all have dead letters: %+v, %v", found, err)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 0`)
	if found, err := s.VerifySample(t.Context(), drawn(right), 50); !errors.Is(err, ops.ErrNotFound) || found.Aggregates > 0 {
		t.Errorf("after a reset: %+v, %v", found, err)
	}
}

// The results that Sample keeps are bounded, and the others are counted.
func TestVerifySampleIsBounded(t *testing.T) {
	t.Parallel()
	var s ops.Sample
	for range 102 {
		ops.AddToSample(&s, ops.Verified{Events: 3, Missing: []string{"{}"}})
		ops.AddToSample(&s, ops.Verified{Events: 1})
	}
	if len(s.Wrong) != 100 || s.MoreWrong != 2 || s.Aggregates != 204 || s.Events != 408 {
		t.Errorf("%d and %d more of %d aggregates with %d events", len(s.Wrong), s.MoreWrong, s.Aggregates, s.Events)
	}
}

func TestVerifySampleRefuses(t *testing.T) {
	t.Parallel()
	right := totals{count(1, "x"), forgetTotals}
	s := verifySite(t, right)
	for name, c := range map[string]struct {
		v     ops.Verification
		limit int
		is    error
		says  string
	}{
		"an aggregate":     {verification(right), 1, ops.ErrInvalid, "leave it empty"},
		"no code":          {ops.Verification{}, 1, ops.ErrInvalid, "Consumer"},
		"too few":          {drawn(right), 0, ops.ErrInvalid, "1"},
		"too many":         {drawn(right), 10_001, ops.ErrInvalid, "10000"},
		"no such consumer": {drawn(named{right}), 1, ops.ErrNotFound, "checkpoints"},
	} {
		if found, err := s.VerifySample(t.Context(), c.v, c.limit); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || found.Aggregates > 0 {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
}

type named struct{ totals }

func (named) Name() string { return "nobody" }
