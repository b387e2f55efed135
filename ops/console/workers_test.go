package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
)

// The workers that stopped are told for a while, and how. A role that may not read of them sees the
// others.
func TestStoppedWorkers(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	for page, table := range map[string]string{"workers": "worker_nodes", "jobworkers": "jobs_workers"} {
		past := map[string]string{"workers": "consumer_past_workers", "jobworkers": "jobs_past_workers"}[page]
		s.Exec(t, `INSERT INTO `+table+` (worker_id, hostname, pid, status, drain_requested_at) VALUES (gen_random_uuid(), 'h', 7,
			'{"LoopError": "it hangs", "Queues": [{"Name": "mail", "LastError": "it hangs", "Concurrency": 2, "Overdue": 1, "OverdueSince": "2026-01-02T03:04:05Z"}]}', '2026-01-02 03:04:05Z')`)
		complaint := map[string]string{"workers": "<p>✕ loop: it hangs</p>", "jobworkers": "<p>✕ queue mail: it hangs</p><p>✕ has lost 1 of 2 slots of queue mail, the first since 2026-01-02"}[page]
		s.Exec(t, `INSERT INTO `+past+` (worker_id, stopped_at, how, hostname, pid, declared_by)
			SELECT gen_random_uuid(), clock_timestamp() - age, how, 'gone', pid, CASE how WHEN 'dead' THEN (SELECT worker_id FROM `+table+`) END
			FROM (VALUES ('stopped', 1, interval '0'), ('failed', 2, '1 minute'), ('drained', 3, '2 minutes'), ('dead', 4, '14 minutes'), ('stopped', 5, '16 minutes')) AS v(how, pid, age)`)
		body := s.get(t, page).expect(t, http.StatusOK).body
		at := 0
		for _, want := range []string{complaint, "asked to drain at <time datetime=\"2026-01-02T03:04:05Z\"", ">gone:1<", "✓ stopped by its program", ">gone:2<", "✕ failed, see its log", ">gone:3<", "✓ drained", ">gone:4<", "✕ declared dead by h:7"} {
			i := strings.Index(body[at:], want)
			if i < 0 {
				t.Fatalf("%s lacks %q there:\n%s", page, want, body)
			}
			at += i
		}
		if strings.Contains(body, "gone:5") {
			t.Errorf("%s tells of one that stopped long ago", page)
		}
	}
	role := "role_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	s.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() {
		s.Exec(t, `DROP OWNED BY `+role)
		s.Exec(t, `DROP ROLE `+role)
	})
	s.Exec(t, `GRANT SELECT ON ALL TABLES IN SCHEMA public TO `+role+`; GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO `+role+`; REVOKE ALL ON consumer_past_workers, jobs_past_workers FROM `+role)
	c := console.New(s.OpenSet(t, "role", role), console.Options{})
	defer c.Close()
	s.server.Config.Handler = http.StripPrefix(prefix, c)
	for _, page := range []string{"workers", "jobworkers"} {
		if body := s.get(t, page).expect(t, http.StatusOK).body; !strings.Contains(body, "it hangs") || strings.Contains(body, "gone:") {
			t.Errorf("%s for a role without the right:\n%s", page, body)
		}
	}
}

// A worker is drained by who has seen which one it is, once, and only by whom Allow lets.
func TestDrainWorker(t *testing.T) {
	t.Parallel()
	for page, change := range map[string]struct{ on, table, operations string }{
		"workers":    {console.OnWorker, "worker_nodes", "consumer_operations"},
		"jobworkers": {console.OnJobWorker, "jobs_workers", "jobs_operations"},
	} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			id := uuid.New()
			s := newSite(t, console.Options{Access: func(r *http.Request) console.Grant {
				return console.Grant{Operator: r.Header.Get("Operator"), Level: console.Operate, Allow: func(a console.Action) bool {
					return a == console.Action{On: change.on, Kind: ops.KindDrain, Name: id.String()}
				}}
			}})
			s.Exec(t, `INSERT INTO `+change.table+` (worker_id, hostname, pid) VALUES ($1, 'h', 7), (gen_random_uuid(), 'h', 8)`, id)
			shown := s.get(t, page).expect(t, http.StatusOK)
			if !strings.Contains(shown.body, fmt.Sprintf(`<option value="%s">h:7 (%.8[1]s)</option>`, id)) || strings.Contains(shown.body, ">h:8 (") {
				t.Errorf("to be chosen are:\n%s", shown.body)
			}
			form := with(shown.hidden(t, `value="drain"`), "name", id.String(), "reason", "the node goes")
			seen := s.do(t, http.MethodPost, "change", form).expect(t, http.StatusOK)
			if !strings.Contains(seen.body, "<h1>Preview: drain "+change.on+" h:7</h1>") || !strings.Contains(seen.body, id.String()) {
				t.Errorf("the preview does not say which worker it is:\n%s", seen.body)
			}
			drained := func() int64 {
				return s.count(t, `SELECT coalesce(sum(pid), 0) FROM `+change.table+` WHERE drain_requested_at IS NOT NULL`)
			}
			if drained() != 0 {
				t.Error("the preview has drained it")
			}
			confirm := seen.hidden(t, `name="step" value="make"`)
			made := s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusSeeOther)
			if to := made.header.Get("Location"); to != page+"?&done=drain" || drained() != 7 {
				t.Errorf("goes on to %q, and the processes %d drain", to, drained())
			}
			if after := s.get(t, made.header.Get("Location")).expect(t, http.StatusOK); !strings.Contains(after.body, "Done: drain") || !strings.Contains(after.body, "asked to drain at") || strings.Contains(after.body, "<option value=\""+id.String()) {
				t.Errorf("after it:\n%s", after.body)
			}
			s.do(t, http.MethodPost, "change", confirm).expect(t, http.StatusConflict)
			if n := s.count(t, `SELECT count(*) FROM `+change.operations+` WHERE operation = 'drain' AND operator = 'ann' AND reason = 'the node goes'`); n != 1 {
				t.Errorf("%d operations", n)
			}
			s.do(t, http.MethodPost, "change", with(form, "name", uuid.NewString())).expect(t, http.StatusForbidden)
			s.Exec(t, `DELETE FROM `+change.table+` WHERE worker_id = $1`, id)
			s.do(t, http.MethodPost, "change", with(form, "name", id.String())).expect(t, http.StatusNotFound)
		})
	}
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 1)
	for _, form := range []url.Values{
		{"on": {"worker"}, "kind": {"drain"}, "name": {"h:7"}}, {"on": {"job worker"}, "kind": {"drain"}, "name": {"h:7"}}, {"on": {"worker"}, "kind": {"pause"}, "name": {uuid.NewString()}}, {"on": {"consumer"}, "kind": {"drain"}, "name": {"c"}},
	} {
		s.do(t, http.MethodPost, "change", with(form, "reason", "r")).expect(t, http.StatusBadRequest)
	}
}
