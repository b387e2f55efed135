package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops/console"
)

// While the log is not as it must be, the pages say so, and show what the workers say of it.
func TestLogThatWasAltered(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.append(t, happened(1)...)
	s.place(t, "c", 0)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, '{"FrontierError": "cannot go on"}')`)
	const says = "The log cannot be read:"
	pages := []string{"", "consumer?name=c", "workers", "blocked"}
	for _, page := range pages {
		if body := s.get(t, page).expect(t, http.StatusOK).body; strings.Contains(body, says) {
			t.Errorf("before the fault, %q says so", page)
		}
	}
	s.Exec(t, `ALTER SEQUENCE events_global_position_seq CACHE 32`)
	for _, page := range pages {
		if body := s.get(t, page).expect(t, http.StatusOK).body; !strings.Contains(body, says) || !strings.Contains(body, "CACHE 1") {
			t.Errorf("%q does not say what is wrong, and the remedy:\n%s", page, body)
		}
	}
	if body := s.get(t, "workers").body; !strings.Contains(body, "cannot go on") {
		t.Errorf("the workers are not heard:\n%s", body)
	}
	var p struct{ Fault string }
	for _, page := range []string{"", "blocked"} {
		if s.read(t, page, &p); !strings.Contains(p.Fault, "CACHE 1") {
			t.Errorf("%q as JSON has the fault %q", page, p.Fault)
		}
		p.Fault = ""
	}
}
