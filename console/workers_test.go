package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/console"
)

// The workers that stopped are told for a while, and how. A role that may not read of them sees the
// others.
func TestStoppedWorkers(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	for page, table := range map[string]string{"workers": "worker_nodes", "jobworkers": "jobs_workers"} {
		past := map[string]string{"workers": "consumer_past_workers", "jobworkers": "jobs_past_workers"}[page]
		s.Exec(t, `INSERT INTO `+table+` (worker_id, hostname, pid, status, drain_requested_at) VALUES (gen_random_uuid(), 'h', 7, '{"LoopError": "it hangs"}', '2026-01-02 03:04:05Z')`)
		s.Exec(t, `INSERT INTO `+past+` (worker_id, stopped_at, how, hostname, pid, declared_by)
			SELECT gen_random_uuid(), clock_timestamp() - age, how, 'gone', pid, CASE how WHEN 'dead' THEN (SELECT worker_id FROM `+table+`) END
			FROM (VALUES ('stopped', 1, interval '0'), ('failed', 2, '1 minute'), ('drained', 3, '2 minutes'), ('dead', 4, '14 minutes'), ('stopped', 5, '16 minutes')) AS v(how, pid, age)`)
		body := s.get(t, page).expect(t, http.StatusOK).body
		at := 0
		for _, want := range []string{"<p>✕ loop: it hangs</p>", "asked to drain at <time datetime=\"2026-01-02T03:04:05Z\"", ">gone:1<", "✓ stopped by its program", ">gone:2<", "✕ failed, see its log", ">gone:3<", "✓ drained", ">gone:4<", "✕ declared dead by h:7"} {
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
