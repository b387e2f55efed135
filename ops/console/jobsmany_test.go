package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops/console"
)

// Failed jobs of a filter are retried and discarded as previewed: jobs that fail afterwards stay, and
// when one of those shown is gone, nothing is changed.
func TestManyJobs(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"retry", "discard"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, console.Options{Access: operators})
			first, second := s.enqueue(t, jobs.StateFailed), s.enqueue(t, jobs.StateFailed)
			s.enqueue(t, jobs.StateCompleted)
			form := with(s.get(t, "jobs?state=failed&queue=slow&kind=mail").hidden(t, `value="`+kind+`"`), "reason", "r")
			if confirm := s.preview(t, form); confirm.Get("shown") == "" {
				t.Fatal("the preview identifies nothing")
			}
			gone := s.preview(t, form)
			s.Exec(t, `DELETE FROM jobs_history WHERE id = $1`, first)
			s.do(t, http.MethodPost, "change", gone).expect(t, http.StatusConflict)
			if n := s.count(t, `SELECT count(*) FROM jobs_operations`); n != 0 {
				t.Fatalf("%d operations of a refused change", n)
			}
			confirm := s.preview(t, form)
			third := s.enqueue(t, jobs.StateFailed)
			to := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther).header.Get("Location")
			if body := s.get(t, to).expect(t, http.StatusOK).body; !strings.Contains(body, "Done: "+kind) {
				t.Errorf("%s does not say that it is done:\n%s", to, body)
			}
			var of int64
			if err := s.DB.QueryRow(`SELECT job_id FROM jobs_operations WHERE job_id IS NOT NULL`).Scan(&of); err != nil || of != second {
				t.Errorf("the operation is on job %d, want %d and not %d: %v", of, second, third, err)
			}
			if n := s.count(t, `SELECT count(*) FROM jobs_operations`); n != 2 {
				t.Errorf("%d operations, want one of the job and one of all", n)
			}
			s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
		})
	}
}

// Who may change the jobs of one queue may not change those of a filter without a queue.
func TestManyJobsOfOneQueue(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: func(*http.Request) console.Grant {
		return console.Grant{Operator: "ann", Level: console.Operate, Allow: func(a console.Action) bool { return a.On == console.OnJob && a.Name == "slow" }}
	}})
	s.enqueue(t, jobs.StateFailed)
	form := with(s.get(t, "jobs?state=failed&queue=slow").hidden(t, `value="retry"`), "reason", "r")
	s.preview(t, form)
	if body := s.get(t, "jobs?state=failed").body; strings.Contains(body, `method="post"`) {
		t.Errorf("a form of all queues is shown:\n%s", body)
	}
	s.do(t, http.MethodPost, "change", with(form, "queue", "")).expect(t, http.StatusForbidden)
}

// The failed jobs of a queue that were shown are acknowledged: the overview does not tell of them any
// more, and tells of the next one. The jobs stay where they are.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.enqueue(t, jobs.StateFailed)
	s.enqueue(t, jobs.StateFailed)
	s.enqueue(t, jobs.StateExpired)
	told := func(says string) {
		t.Helper()
		body := s.get(t, "").expect(t, http.StatusOK).body
		if says == "" && strings.Contains(body, "failed for good") || !strings.Contains(body, says) {
			t.Errorf("the overview does not say %q:\n%s", says, body)
		}
	}
	const page = "jobs?state=failed&queue=slow"
	told("queue slow: 2 jobs have failed for good")
	for _, without := range []string{"jobs?state=failed", "jobs?queue=slow", "jobs?state=expired&queue=slow"} {
		if body := s.get(t, without).body; strings.Contains(body, `value="acknowledge"`) {
			t.Errorf("%s has the form:\n%s", without, body)
		}
	}
	form := with(s.get(t, page).hidden(t, `value="acknowledge"`), "reason", "seen")
	confirm := s.preview(t, form)
	s.enqueue(t, jobs.StateFailed)
	to := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther).header.Get("Location")
	if body := s.get(t, to).expect(t, http.StatusOK).body; !strings.Contains(body, "Done: acknowledge") || strings.Count(body, "failed, acknowledged") != 2 {
		t.Errorf("%s does not show what was done:\n%s", to, body)
	}
	told("queue slow: 1 job has failed for good")
	confirm = s.preview(t, form)
	s.count(t, fmt.Sprintf(`UPDATE jobs_history SET finished_at = '2020-01-01' WHERE id = %d RETURNING 1`, s.enqueue(t, jobs.StateFailed))) // and is committed only now
	s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
	told("queue slow: 2 jobs have failed for good")
	s.do(t, http.MethodPost, "change", s.preview(t, form)).expect(t, http.StatusSeeOther)
	told("")
	if got := s.do(t, http.MethodPost, "change", form).expect(t, http.StatusConflict); !strings.Contains(got.body, "waits to be acknowledged") {
		t.Error(got.body)
	}
	s.do(t, http.MethodPost, "change", with(confirm, "through", "noon")).expect(t, http.StatusBadRequest)
	if n := s.count(t, `SELECT count(*) FROM jobs_operations WHERE operation = 'acknowledge' AND queue = 'slow' AND operator = 'ann' AND reason = 'seen'`); n != 2 {
		t.Errorf("%d operations, want 2", n)
	}
}
