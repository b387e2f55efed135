package ops_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/ops"
)

// Confirmed commits a change that records the shown operation, and rolls back a change that
// records another one.
func TestConfirmed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	s.place(t, 3)
	for p := range int64(3) {
		s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
			SELECT 'c', global_position, aggregate_type, aggregate_id, event_id, event_type, 'boom', 1 FROM events WHERE global_position = $1`, p+1)
	}
	discard := func(o *ops.Operator) error {
		_, err := o.DiscardDeadLettersWhere(t.Context(), "c", ops.DeadLetterFilter{Error: "boom"}, 10, by)
		return err
	}
	shown, err := s.Preview(discard)
	if err != nil {
		t.Fatal(err)
	}
	other := errors.New("it would do something else")
	as := func(recorded []ops.Operation) error {
		if len(recorded) != 1 || string(recorded[0].Detail) != string(shown[0].Detail) {
			return other
		}
		return nil
	}
	s.Exec(t, `DELETE FROM consumer_dead_letters WHERE global_position = 3`) // as another operator would
	before := dump(t, func(query string, into ...any) { s.scan(t, query, into...) }, consumerTables...)
	if err := s.Confirmed(discard, as); !errors.Is(err, other) {
		t.Errorf("Confirmed: %v", err)
	}
	if after := dump(t, func(query string, into ...any) { s.scan(t, query, into...) }, consumerTables...); after != before {
		t.Errorf("a change that was not accepted has left something:\n%s\nbefore:\n%s", after, before)
	}
	if shown, err = s.Preview(discard); err != nil {
		t.Fatal(err)
	}
	if err := s.Confirmed(discard, as); err != nil {
		t.Error(err)
	}
	var detail struct{ Positions []int64 }
	if s.last(t, &detail); len(detail.Positions) != 2 || s.count(t, `SELECT count(*) FROM consumer_dead_letters`) != 0 {
		t.Errorf("discarded %v", detail.Positions)
	}

	// accept is called for each of several changes.
	var asked []int
	several := func(o *ops.Operator) error {
		return errors.Join(o.Pause(t.Context(), "c", by), o.Resume(t.Context(), "c", by))
	}
	if err := s.Confirmed(several, func(recorded []ops.Operation) error { asked = append(asked, len(recorded)); return nil }); err != nil || fmt.Sprint(asked) != "[1 1]" {
		t.Errorf("asked about %v operations, %v", asked, err)
	}
}

// The operations on a consumer include operations on its present and former units. They exclude
// operations on consumers with similar names.
func TestOperationsOfUnits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	its := []string{"c", "c#000-7ff", "c#999-999", "c#a00-a7f", "c#fff-fff", "c#800-fff", "c#9ff-fff"}
	for _, name := range append([]string{"a", "b#000-7ff", "C", "c0", "c_", "cc", "c0007ff", "c-", "cz", "d", "d#000-7ff"}, its...) {
		s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ($1, 'pause', '{}', 'ann', 'r')`, name)
	}
	all, err := s.Operations(t.Context(), ops.OperationFilter{Consumer: "c"}, 100)
	var names []string
	for _, o := range all {
		names = append(names, o.Consumer)
	}
	slices.Reverse(names) // the newest comes first
	if err != nil || !slices.Equal(names, its) {
		t.Errorf("%q, %v", names, err)
	}
}

// Workers distinguishes three kinds of workers: with code for consumers, with code for none,
// and without a report of their code.
func TestWorkersAbility(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i, able := range []string{"{a,b}", "{a,b}", "{}", "{b}", "{a,b}"} {
		s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, heartbeat_at) VALUES (gen_random_uuid(), $1::text[], 'h', 1, now() - $2::int * interval '1 s')`, able, i)
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, heartbeat_at) VALUES (gen_random_uuid(), NULL, 'h', 1, now() - interval '9 s')`)
	all, err := s.Workers(t.Context())
	text := ""
	for _, w := range all {
		text += fmt.Sprint(w.Able, w.Able == nil, " ")
	}
	if want := "[a b] false [a b] false [] false [b] false [a b] false [] true "; err != nil || text != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

// A worker that its own Stop drains already is not drained again.
func TestDrainWorkerThatStops(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := uuid.New()
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, heartbeat_at, draining) VALUES ($1, now(), true)`, id)
	if err := s.DrainWorker(t.Context(), id, by); !errors.Is(err, ops.ErrUnchanged) || s.count(t, `SELECT count(drain_requested_at) FROM worker_nodes`) != 0 {
		t.Errorf("of a worker that stops: %v", err)
	}
	s.Exec(t, `UPDATE worker_nodes SET draining = false`)
	if err := s.DrainWorker(t.Context(), id, by); err != nil || s.count(t, `SELECT count(drain_requested_at) FROM worker_nodes`) != 1 {
		t.Errorf("of one that runs: %v", err)
	}
}

// The pages of Operations contain each operation once.
func TestOperationsPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	for range 3 {
		for _, change := range []func() error{
			func() error { return s.Pause(t.Context(), "c", by) },
			func() error { return s.Resume(t.Context(), "c", by) },
		} {
			if err := change(); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := s.Operations(t.Context(), ops.OperationFilter{Consumer: "c"}, 100)
	if err != nil || len(all) != 6 {
		t.Fatalf("%d operations, %v", len(all), err)
	}
	for _, consumer := range []string{"c", ""} {
		for before, i := int64(0), 0; i < 6; i += 2 {
			page, err := s.Operations(t.Context(), ops.OperationFilter{Consumer: consumer, Before: before}, 2)
			if err != nil || len(page) != 2 || page[0].ID != all[i].ID || page[1].ID != all[i+1].ID {
				t.Fatalf("of %q before %d: %v, %v", consumer, before, page, err)
			}
			before = page[1].ID
		}
	}
}
