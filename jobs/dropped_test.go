package jobs_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/jobs"
)

// A worker names the trigger that drops the end of a job. Without the trigger the job ends, and has
// run once.
func TestTriggerThatDropsTheEndOfAJob(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		on, table string
		err       error // of the handler
		want      jobs.State
	}{
		{"DELETE", "jobs", nil, jobs.StateCompleted},
		{"DELETE", "jobs", errors.New("no"), jobs.StateFailed},
		{"INSERT", "jobs_history", errors.New("no"), jobs.StateFailed},
	} {
		t.Run(c.on+" "+c.table+" "+string(c.want), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error {
				s.note("ran")
				return c.err
			}, jobs.MaxAttempts(1))
			s.d.DropRows(t, c.on, c.table)
			e, err := s.Enqueue(t.Context(), nil, task{})
			if err != nil {
				t.Fatal(err)
			}
			w := s.run()
			s.until("the worker to name the trigger", func() bool {
				err := w.Status().SettleError
				return err != nil && strings.Contains(err.Error(), "BEFORE trigger")
			})
			s.d.Exec(t, `DROP TRIGGER drop_rows ON `+c.table)
			if i := s.ended(e.ID); i.State != c.want {
				t.Errorf("the job is %s, want %s", i.State, c.want)
			}
			if n := len(s.notes()); n != 1 {
				t.Errorf("it has run %d times", n)
			}
		})
	}
}
