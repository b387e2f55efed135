package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops/console"
)

// A pool of one connection serves every page, all updates and all changes: none of them waits for a
// second one.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	s, pages := furnished(t, console.Options{Access: operators})
	s.DB.SetMaxOpenConns(1)
	viewer := s.watch(t, "live?page=")
	viewer.until(t, "data-summary")
	for _, page := range append(pages, "operations.csv", "jobsoperations.csv") {
		s.get(t, page).expect(t, http.StatusOK)
	}
	for _, form := range []url.Values{
		{"on": {"consumer"}, "kind": {"pause"}, "name": {"mail_v1"}},
		{"on": {"consumer"}, "kind": {"discard"}, "name": {"totals_v1"}, "all": {"1"}},
		{"on": {"consumer"}, "kind": {"partition"}, "name": {"mail_v1"}, "number": {"2"}},
		{"on": {"queue"}, "kind": {"cap"}, "name": {"slow"}, "number": {"3"}},
		{"on": {"job"}, "kind": {"retry"}, "position": {fmt.Sprint(s.enqueue(t, jobs.StateFailed))}},
	} {
		s.do(t, http.MethodPost, "change", s.preview(t, with(form, "reason", "r"))).expect(t, http.StatusSeeOther)
	}
	viewer.leave()
	await(t, "the connection", func() bool { return s.DB.Stats().InUse == 0 })
}

// A page and a change wait for the database as long as they may, and no longer. Nothing stays behind.
func TestDatabaseHangs(t *testing.T) {
	t.Parallel()
	s, pages := furnished(t, console.Options{Access: operators})
	form := s.preview(t, url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"mail_v1"}, "reason": {"r"}})
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`LOCK TABLE consumer_checkpoints, consumer_operations, consumer_gap_skips, consumer_dead_letters, events, jobs, jobs_history, jobs_queues, jobs_workers, jobs_schedules, jobs_flow_runs, jobs_flow_steps`); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for _, page := range append(pages, "operations.csv") {
		if page == "event" || page == "plan" { // a form
			continue
		}
		group.Go(func() {
			if got := s.do(t, http.MethodGet, page, nil); got.status != http.StatusServiceUnavailable {
				t.Errorf("%s: status %d:\n%s", page, got.status, got.body)
			}
		})
	}
	group.Go(func() {
		if got := s.do(t, http.MethodPost, "change", form); got.status != http.StatusServiceUnavailable {
			t.Errorf("a change: status %d:\n%s", got.status, got.body)
		}
	})
	group.Wait()
	await(t, "all connections but that of the lock", func() bool { return s.DB.Stats().InUse == 1 })
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Errorf("%d operations", n)
	}
}

// A form that is longer than any of the console's is not read to its end.
func TestLongForm(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 0)
	form := url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"c"}, "reason": {"r"}, "besides": {strings.Repeat("x", 1_000_000)}}
	if got := s.do(t, http.MethodPost, "change", form).expect(t, http.StatusBadRequest); !strings.Contains(got.body, "longer than 64 KiB") {
		t.Error(got.body)
	}
}

// Queues and schedules come in pages, each once, and all queues together on each of them.
func TestManyNames(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	const n = 250
	s.Exec(t, `INSERT INTO jobs (kind, queue) SELECT 'k', CASE WHEN i % 2 = 0 THEN '!' ELSE 'q' END || i FROM generate_series(1, $1::int) AS i`, n)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) SELECT 's&' || i, 'h', now() FROM generate_series(1, $1::int) AS i`, n)
	for _, page := range []string{"queues", "schedules"} {
		seen, pages := map[string]int{}, 0
		for after := ""; ; {
			var p struct {
				Queues, Schedules []struct{ Name string }
				NextQueue         string
				Next              any // of queues, that of the operations
			}
			address := page + "?" + url.Values{"after": {after}}.Encode()
			s.read(t, address, &p)
			for _, one := range append(p.Queues, p.Schedules...) {
				seen[one.Name]++
			}
			body := s.get(t, address).expect(t, http.StatusOK).body
			pages++
			if after = p.NextQueue; page == "schedules" {
				after, _ = p.Next.(string)
			}
			if strings.Contains(body, `rel="next"`) != (after != "") || after != "" && !strings.Contains(body, page+"?after="+strings.NewReplacer("&", "%26", "!", "%21").Replace(after)) {
				t.Fatalf("%s: the link to those after %q:\n%s", address, after, body)
			}
			if after == "" || pages > n {
				break
			}
		}
		if page == "queues" {
			if seen["*"] != pages {
				t.Errorf("all queues together are on %d of %d pages", seen["*"], pages)
			}
			delete(seen, "*")
		}
		for name, times := range seen {
			if times != 1 {
				t.Errorf("%s: %q comes %d times", page, name, times)
			}
		}
		if len(seen) != n || pages != 3 {
			t.Errorf("%s: %d names on %d pages", page, len(seen), pages)
		}
	}
}

// Of a job that was snoozed thousands of times, the latest runs are shown. Of a worker whose
// consumers all fail, some are.
func TestManyConditions(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	id := s.enqueue(t, jobs.StateAvailable)
	s.Exec(t, `INSERT INTO jobs_attempts (job_id, attempt, claim, worker_id, outcome) SELECT $1::bigint, i, i, gen_random_uuid(), 'snoozed' FROM generate_series(1, 2000) AS i`, id)
	page := fmt.Sprint("job?id=", id)
	var p struct{ Attempts []struct{ Number int } }
	if s.read(t, page, &p); len(p.Attempts) != 1_000 || p.Attempts[0].Number != 1_001 || p.Attempts[999].Number != 2_000 {
		t.Errorf("%d runs", len(p.Attempts))
	}
	if body := s.get(t, page).body; strings.Count(body, "<td>snoozed</td>") != 50 || !strings.Contains(body, ">2000</th>") || strings.Contains(body, ">1950</th>") {
		t.Errorf("not the latest 50:\n%s", body)
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, jsonb_build_object('LoopError', 'it hangs', 'Consumers', (SELECT jsonb_agg(jsonb_build_object('Name', 'c' || k, 'LastError', 'no customer')) FROM generate_series(1, 20) AS k)))`)
	if body := s.get(t, "workers").body; strings.Count(body, ": no customer") != 3 || !strings.Contains(body, "<p>✕ loop: it hangs</p>") || !strings.Contains(body, "<p>✕ 17 other consumers with an error</p>") {
		t.Errorf("a worker's troubles:\n%s", body)
	}
}
