package ops_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops"
)

// deadLetter records a dead letter of the consumer "c" for an event of the log.
func (s site) deadLetter(t testing.TB, position int64, aggregate string, attempts int) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		VALUES ('c', $1::bigint, 'Order', $2::text, gen_random_uuid(), 'Happened', CASE WHEN $3::int > 0 THEN 'boom' END, $3::int)`, position, aggregate, attempts)
}

func (s site) deadLetters(t testing.TB) (all string) {
	t.Helper()
	deadLetters, err := s.DeadLetters(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range deadLetters {
		all += fmt.Sprintf("%d %s %v; ", l.Position, l.AggregateID, l.RetryAt != nil)
	}
	return all
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 9)
	s.deadLetter(t, 3, "a", 5)
	s.deadLetter(t, 7, "a", 0)
	s.deadLetter(t, 5, "b", 2)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, attempts)
		VALUES ('d', 3, 'Order', 'a', gen_random_uuid(), 'Happened', 1), ('c', 4, 'Invoice', 'a', gen_random_uuid(), 'Happened', 1)`)
	all, err := s.DeadLetters(t.Context(), "c")
	if err != nil || len(all) != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	if l := all[0]; l.Consumer != "c" || l.Position != 3 || l.AggregateType != "Order" || l.AggregateID != "a" || l.EventType != "Happened" || l.Error != "boom" || l.Attempts != 5 || l.RetryAt != nil || l.CreatedAt.IsZero() || l.UpdatedAt.IsZero() {
		t.Errorf("%+v", l)
	}
	if l := all[3]; l.Position != 7 || l.Error != "" || l.Attempts != 0 {
		t.Errorf("one that was never tried: %+v", l)
	}
	if all, err = s.DeadLetters(t.Context(), ""); err != nil || len(all) != 5 || all[4].Consumer != "d" {
		t.Errorf("of all consumers: %+v, %v", all, err)
	}

	// A retry takes the dead letters of the whole aggregate, and of no other.
	if err := s.RetryDeadLetters(t.Context(), "c", 7, by); err != nil {
		t.Fatal(err)
	}
	if got, want := s.deadLetters(t), "3 a true; 4 a false; 5 b false; 7 a true; "; got != want {
		t.Errorf("after a retry: %s, want %s", got, want)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters WHERE consumer_name = 'd' AND retry_at IS NOT NULL`); n > 0 {
		t.Error("a retry reached another consumer")
	}
	var retried struct {
		Position, Letters int64
		AggregateID       string `json:"aggregate_id"`
	}
	if op := s.last(t, &retried); op.Kind != ops.KindRetry || retried.Position != 7 || retried.Letters != 2 || retried.AggregateID != "a" {
		t.Errorf("recorded %+v, %+v", op, retried)
	}

	if err := s.DiscardDeadLetter(t.Context(), "c", 3, by); err != nil {
		t.Fatal(err)
	}
	if got, want := s.deadLetters(t), "4 a false; 5 b false; 7 a true; "; got != want {
		t.Errorf("after a discard: %s, want %s", got, want)
	}
	var discarded struct {
		Position int64
		Error    string
		Attempts int
		EventID  string `json:"event_id"`
	}
	if op := s.last(t, &discarded); op.Kind != ops.KindDiscard || discarded.Position != 3 || discarded.Error != "boom" || discarded.Attempts != 5 || discarded.EventID != all[0].EventID.String() {
		t.Errorf("recorded %+v, %+v", op, discarded)
	}
	s.expectProgress(t, 9, 2)
	for _, err := range []error{s.RetryDeadLetters(t.Context(), "c", 3, by), s.DiscardDeadLetter(t.Context(), "c", 3, by)} {
		if !errors.Is(err, ops.ErrNoDeadLetter) {
			t.Errorf("of a letter that is gone: %v", err)
		}
	}
	s.expectProgress(t, 9, 2)
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 9)
	if err := s.Resume(t.Context(), "c", by); !errors.Is(err, ops.ErrNotPaused) {
		t.Errorf("a resume of one that is not paused: %v", err)
	}
	s.expectUntouched(t, 9)
	if err := s.Pause(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	paused := func() *ops.Pause {
		all, err := s.Consumers(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0].Paused
	}
	first := paused()
	if first == nil || first.By != by || first.Since.IsZero() {
		t.Fatalf("paused: %+v", first)
	}
	if err := s.Pause(t.Context(), "c", ops.By{Operator: "bob", Reason: "another"}); !errors.Is(err, ops.ErrPaused) {
		t.Errorf("a second pause: %v", err)
	}
	if again := paused(); *again != *first {
		t.Errorf("a second pause made %+v of %+v", again, first)
	}
	s.expectProgress(t, 9, 1)
	if err := s.Resume(t.Context(), "c", by); err != nil {
		t.Fatal(err)
	}
	if left := paused(); left != nil {
		t.Errorf("after the resume: %+v", left)
	}
	s.expectProgress(t, 9, 2)
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE paused_by IS NOT NULL OR paused_reason IS NOT NULL`); n > 0 {
		t.Error("the resume left who and why")
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if all, err := s.Consumers(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("of an empty database: %+v, %v", all, err)
	}
	s.place(t, 9)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('b', 4)`)
	s.open(t, 2, 3)
	s.open(t, 7, 7)
	s.deadLetter(t, 1, "a", 1)
	all, err := s.Consumers(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "b" || all[0].OpenRanges+all[0].DeadLetters != 0 || all[1].OpenRanges != 2 || all[1].DeadLetters != 1 || all[1].UpdatedAt.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
	for _, c := range []string{"c", "b", "c"} {
		if err := s.Reset(t.Context(), c, all[0].Position-s.count(t, `SELECT count(*) FROM consumer_operations`)-1, by); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		consumer string
		limit    int
		want     string
	}{{"", 10, "c b c "}, {"c", 10, "c c "}, {"", 2, "c b "}, {"none", 1, ""}} {
		operations, err := s.Operations(t.Context(), ops.OperationFilter{Consumer: c.consumer}, c.limit)
		got := ""
		for _, op := range operations {
			got += op.Consumer + " "
		}
		if err != nil || got != c.want {
			t.Errorf("Operations(%q, %d): %q, %v; want %q", c.consumer, c.limit, got, err, c.want)
		}
	}
	for _, limit := range []int{0, -1, 10_001} {
		if _, err := s.Operations(t.Context(), ops.OperationFilter{}, limit); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

func TestListsRefuseInvalidArguments(t *testing.T) {
	t.Parallel()
	unknown, err := sql.Open("pgx", "postgres://localhost:1/x?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer unknown.Close()
	away, err := ops.New(unknown)
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string]func(consumer string) error{
		"DeadLetters": func(consumer string) error { _, err := away.DeadLetters(t.Context(), consumer); return err },
		"Operations": func(consumer string) error {
			_, err := away.Operations(t.Context(), ops.OperationFilter{Consumer: consumer}, 1)
			return err
		},
		"Consumers": func(string) error { _, err := away.Consumers(t.Context()); return err },
	} {
		if err := list("c"); err == nil || errors.Is(err, ops.ErrInvalid) || !strings.HasPrefix(err.Error(), "ops: list the ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s without a server: %v", name, err)
		}
		if name == "Consumers" {
			continue
		}
		for _, consumer := range []string{"   ", "a\nb", "a\xff", strings.Repeat("n", 1<<20)} {
			if err := list(consumer); !errors.Is(err, ops.ErrInvalid) || len(err.Error()) > 500 {
				t.Errorf("%s of %.20q: %.500v", name, consumer, err)
			}
		}
	}
}
