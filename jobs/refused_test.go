package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
)

// A job whose ID an earlier job has in the history delays no other job: when runs end, when jobs
// expire, and when jobs of a dead worker are reset. The job is reported with the remedy. It ends
// once the earlier job is removed.
func TestJobWhoseIDTheHistoryHas(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[named]) error { return j.SetResult(j.Args.Name) })
	jobs.Register(s.Handlers, func(context.Context, *jobs.Job[task]) error { return nil })
	s.d.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
		SELECT n, 'task', 'default', 5, now(), '{}', now(), 1, 0, 0, 5, 'completed' FROM unnest('{1,6,11,16}'::int[]) AS n`)
	for n := range 20 { // IDs 1 to 20, five for each way to end
		switch n / 5 {
		case 0:
			s.add(task{n})
		case 1:
			s.add(named{"a result"})
		case 2:
			s.add(task{n}, jobs.GoodUntil(time.Now().Add(-time.Hour)))
		case 3:
			s.d.Exec(t, `INSERT INTO jobs (kind, args, state, claim, claimed_by, claimed_at, started_at, attempt, cancel_at)
				VALUES ('task', '{}', 'running', 1, $1::uuid, now(), now(), 1, now())`, uuid.NewString())
		}
	}
	w := s.run(jobs.WithRescueDelay(100*time.Millisecond), jobs.WithObserver(observe.On(func(f observe.StatementFailed) { s.note("%s: %v", f.Condition, f.Err) }),
		observe.On(func(f observe.TaskFailed) { s.note("%s: %v", f.Task, f.Err) }),
		observe.On(func(r observe.Recovered) { s.note("recovered %s", r.Condition) })))
	ends := func() (n int) {
		if err := s.d.DB.QueryRow(`SELECT count(*) FROM jobs_history`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.until("the others to end", func() bool { return ends() == 4+16 })
	reported := func(what string, id int) func() bool {
		return func() bool {
			all := strings.Join(s.notes(), "\n")
			return strings.Contains(all, what) && strings.Contains(all, fmt.Sprintf("SET id = -id WHERE id = %d)", id))
		}
	}
	s.until("a job without a result to be reported", reported("settle: jobs: what became of job 1 cannot be stored: ", 1))
	s.until("a job with a result to be reported", reported("settle: jobs: what became of job 6 cannot be stored: ", 6))
	s.until("a job that expires to be reported", reported("expire jobs: job 11: ", 11))
	s.until("a job of a dead worker to be reported", reported("reset the jobs of dead workers: job 16: ", 16))
	s.until("the status to show both", func() bool {
		st := w.Status()
		return st.Unsettled == 2 && st.SettleError != nil && strings.Contains(st.SettleError.Error(), "(and 1 more jobs)")
	})
	s.d.Exec(t, `UPDATE jobs_history SET id = -id WHERE id IN (1, 6, 11, 16)`)
	s.until("all to end", func() bool { return ends() == 4+20 })
	s.until("the trouble to be over", func() bool {
		return w.Status().SettleError == nil && strings.Contains(strings.Join(s.notes(), "\n"), "recovered settle")
	})
}

// The database's encoding may not hold the error of a job. Then the error is stored in ASCII, and
// the job is retried as usual. If the encoding does not hold the result, the job fails.
func TestErrorThatTheEncodingDoesNotHold(t *testing.T) {
	t.Parallel()
	latin := pgtest.Latin1(t)
	if err := migrations.ApplyJobs(t.Context(), latin.DB, nil); err != nil {
		t.Fatal(err)
	}
	s := &stage{Client: jobs.NewClient(latin.DB), Handlers: jobs.NewHandlers(), t: t, d: latin}
	jobs.Register(s.Handlers, func(_ context.Context, j *jobs.Job[task]) error {
		switch {
		case j.Args.N == 1 && j.Attempt == 1:
			return errors.New("caf\u00e9: \u5931\u6557 \U0001f600")
		case j.Args.N == 2:
			return j.SetResult("\u5931\u6557")
		}
		return nil
	}, jobs.Retry(jobs.Fixed(0)))
	s.run()
	i := s.ended(s.add(task{1}))
	if i.State != jobs.StateCompleted || i.Attempt != 2 || len(i.Attempts) != 1 || i.Attempts[0].Error != `caf\u00e9: \u5931\u6557 \U0001f600` {
		t.Errorf("the job with an error is %+v", i)
	}
	if i := s.ended(s.add(task{2})); i.State != jobs.StateFailed || i.Code != jobs.CodeResult || i.Attempt != 1 {
		t.Errorf("the job with a result is %+v", i)
	}
}
