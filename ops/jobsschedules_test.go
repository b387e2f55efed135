package ops_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pgfrontier/worker/ops"
)

// A paused schedule shows the operator and the reason. A schedule that no program has is
// overdue, and can be removed.
func TestSchedules(t *testing.T) {
	t.Parallel()
	s := newJobsSite(t)
	ctx := t.Context()
	for _, err := range []error{s.PauseSchedule(ctx, "s", by), s.ResumeSchedule(ctx, "s", by), s.RemoveSchedule(ctx, "s", by)} {
		if !errors.Is(err, ops.ErrNoSchedule) {
			t.Errorf("without a schedule: %v", err)
		}
	}
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at, last_at) VALUES
		('s', 'h', clock_timestamp() - interval '1 hour', clock_timestamp() - interval '2 hours'), ('never', 'h', NULL, NULL), ('soon', 'h', clock_timestamp() + interval '1 hour', NULL)`)
	if err := s.ResumeSchedule(ctx, "s", by); !errors.Is(err, ops.ErrNotPaused) {
		t.Errorf("resumed before: %v", err)
	}
	if err := s.PauseSchedule(ctx, "s", by); err != nil {
		t.Fatal(err)
	}
	err := s.PauseSchedule(ctx, "s", ops.By{Operator: "bob", Reason: "lunch"})
	if !errors.Is(err, ops.ErrPaused) {
		t.Errorf("paused twice: %v", err)
	}
	says(t, err, `by "ann", because "a test"`)
	all, err := s.Schedules(ctx)
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	if never := all[0]; never.Name != "never" || !never.Next.IsZero() || never.Overdue != 0 || never.Paused != nil {
		t.Errorf("%+v", never)
	}
	if late := all[1]; late.Name != "s" || late.Overdue < time.Hour || late.Overdue > 2*time.Hour || late.Last.IsZero() || late.Paused == nil || late.Paused.By != by {
		t.Errorf("%+v", late)
	}
	if soon := all[2]; soon.Overdue != 0 || time.Until(soon.Next) < 0 {
		t.Errorf("%+v", soon)
	}
	if err := s.ResumeSchedule(ctx, "s", by); err != nil {
		t.Fatal(err)
	}
	var detail struct {
		Schedule string
		Since    time.Time `json:"paused_since"`
	}
	if op := s.last(t, &detail); op.Kind != ops.KindResume || detail.Schedule != "s" || detail.Since.IsZero() {
		t.Errorf("recorded %+v, %+v", op, detail)
	}
	if err := s.RemoveSchedule(ctx, "s", by); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Schedules(ctx); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
}
