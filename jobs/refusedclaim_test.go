package jobs_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// A job that the database does not let a worker claim or start delays no other job. It is named once,
// and runs when the database takes it.
func TestRefusedJobDelaysNoOther(t *testing.T) {
	t.Parallel()
	const claimed, started = `OLD.state = 'available' AND NEW.state = 'running'`, `OLD.state = 'running' AND OLD.started_at IS NULL AND NEW.started_at IS NOT NULL`
	for name, c := range map[string]struct {
		refused string // the change that a trigger refuses; empty: a number of attempts that cannot grow
		capped  bool
		opts    []jobs.Option
	}{
		"claim":             {claimed, false, nil},
		"claim under a cap": {claimed, true, nil},
		"claim by condition": {claimed, false, []jobs.Option{jobs.WithHooks(jobs.Hooks{BeforeClaim: func(context.Context, string) jobs.ClaimFilter {
			return jobs.ClaimFilter{Condition: `priority < $1`, Args: []any{9}}
		}})}},
		"prefetch":        {claimed, false, []jobs.Option{jobs.WithPrefetch(20)}},
		"start":           {started, false, []jobs.Option{jobs.WithPrefetch(20)}},
		"too many to add": {"", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
			if c.capped {
				o, err := ops.NewJobs(s.d.DB)
				if err != nil {
					t.Fatal(err)
				}
				if err := o.SetCap(t.Context(), "default", 5, operator); err != nil {
					t.Fatal(err)
				}
			}
			var ids []int64
			for range 40 {
				ids = append(ids, s.add(task{}))
			}
			bad, others := ids[7], append(ids[:7:7], ids[8:]...)
			if c.refused == "" {
				s.d.Exec(t, `UPDATE jobs SET attempt = 2147483647 WHERE id = $1`, bad)
			} else {
				s.d.Exec(t, fmt.Sprintf(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF OLD.id = %d AND %s THEN RAISE 'not this one'; END IF; RETURN NEW; END $$`, bad, c.refused))
				s.d.Exec(t, `CREATE TRIGGER refuse BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()`)
			}
			w := s.run(append(c.opts, jobs.WithConcurrency(5), jobs.WithObserver(observe.On(func(f observe.StatementFailed) {
				if f.Condition == observe.ConditionQueue && pgdriver.FaultOf(f.Err) == pgdriver.FaultRow { // a slow server refuses nothing
					s.note("refused %d", f.Row)
				}
			})))...)
			for _, id := range others {
				if i := s.ended(id); i.State != jobs.StateCompleted {
					t.Fatalf("job %d is %s", id, i.State)
				}
			}
			for i := s.ended(s.add(task{})); i.State != jobs.StateCompleted; {
				t.Fatalf("a later job is %s", i.State)
			}
			if c.refused != started { // which is claimed again, and then starts with its claim
				s.until("the status to name the job", func() bool {
					q := w.Status().Queues[0]
					return q.LastError != nil && q.Refused == 1 && strings.Contains(q.LastError.Error(), fmt.Sprintf("job %d:", bad)) && strings.Contains(q.LastError.Error(), "others go on")
				})
				if reasons := w.Ready(t.Context(), 0); len(reasons) > 0 {
					t.Errorf("the worker is not ready: %v", reasons)
				}
				s.d.Exec(t, `DROP TRIGGER IF EXISTS refuse ON jobs`)
				s.d.Exec(t, `UPDATE jobs SET attempt = 0 WHERE id = $1 AND attempt > 9`, bad)
			}
			if i := s.ended(bad); i.State != jobs.StateCompleted {
				t.Errorf("the refused job is %s", i.State)
			}
			s.until("the status to be well again", func() bool { q := w.Status().Queues[0]; return q.LastError == nil && q.Refused == 0 })
			if n, all := s.noted("refused %d", bad), len(s.notes()); n != all || n == 0 || n > 1 && c.refused != started {
				t.Errorf("observers were told of %q", s.notes())
			}
		})
	}
}

// A refused job that is removed is named no more, also if no other job comes.
func TestRefusedJobThatIsGone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	s.add(task{})
	s.d.Exec(t, `UPDATE jobs SET attempt = 2147483647`)
	w := s.run()
	s.until("the status to name the job", func() bool { return w.Status().Queues[0].LastError != nil })
	s.d.Exec(t, `DELETE FROM jobs`)
	s.until("the status to be well again", func() bool { return w.Status().Queues[0].LastError == nil })
}
