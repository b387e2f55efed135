package console_test

import (
	"html"
	"net/http"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/ops/console"
)

// The overview names what is wrong, each with the page that shows more, and nothing if
// nothing is.
func TestOverviewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 0)
	s.staff(t, 1, fresh, "c")
	if body := s.get(t, "").body; strings.Contains(body, "wrong") || strings.Contains(body, "complaint") {
		t.Errorf("nothing is wrong:\n%s", body)
	}
	s.Exec(t, `DELETE FROM worker_nodes`)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, '{"LoopError": "it <hangs>", "Consumers": [{"Name": "c", "LastError": "no customer"}]}')`)
	s.Exec(t, `INSERT INTO jobs_queues (name, paused_at, paused_by, paused_reason) VALUES ('mail', now(), 'ann', 'lunch')`)
	s.Exec(t, `INSERT INTO jobs (kind, queue, run_at) VALUES ('k', 'a&b', now() - interval '1 hour')`)
	s.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state) VALUES (1, 'k', 'bill', 5, now(), '{}', now(), 1, 1, 0, 5, 'failed')`)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 'h', now() - interval '1 hour')`)
	s.Exec(t, `INSERT INTO jobs_flow_runs (flow, version, unfinished) VALUES ('f', 'v', 1)`)
	body := html.UnescapeString(s.get(t, "").body)
	for page, text := range map[string]string{
		"workers":                          "worker h:7: loop: it <hangs>",
		"consumer?name=c":                  "consumer c: no customer",
		"queues":                           "queue mail: paused by ann (lunch)",
		"jobs?queue=a%26b&state=available": "queue a&b: jobs are due and do not run, for 1h0m, and no worker serves it",
		"jobs?queue=bill&state=failed":     "queue bill: 1 job has failed for good",
		"schedules":                        "schedule nightly: overdue for 1h0m",
		"flows":                            "flows: runs have not ended, and no worker advances them",
	} {
		if line := `<li class="bad">✕ <a href="` + page + `">` + text + `</a></li>`; !strings.Contains(body, line) {
			t.Errorf("%s is not in\n%s", line, body)
		}
		s.get(t, page).expect(t, http.StatusOK)
	}
	var p struct{ Wrong []alarms.Alarm }
	if s.read(t, "", &p); len(p.Wrong) != 7 || p.Wrong[0].String() != "worker h:7: loop: it <hangs>" {
		t.Errorf("as JSON: %+v", p.Wrong)
	}
	if event, _ := s.watch(t, "live?page=").next(t); !strings.Contains(event, "1 consumer, 1 worker, 1 whose worker is silent, 7 complaints") || !strings.Contains(event, "no customer") {
		t.Errorf("an update: %s", event)
	}
}

// Where there are no jobs, the overview says nothing of them.
func TestOverviewWithoutJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.place(t, "c", 0)
	s.Exec(t, `DROP TABLE jobs CASCADE`)
	if body := s.get(t, "").expect(t, http.StatusOK).body; strings.Contains(body, "complaint") {
		t.Errorf("without jobs:\n%s", body)
	}
}
