package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/ops/console"
)

var (
	verdictLine = regexp.MustCompile(`<p class="verdict ([a-z]*)"><span aria-hidden="true">(.*?)</span> <strong>(.*?):</strong> (.*?)\.</p>`)
	noticeLine  = regexp.MustCompile(`<li class="([a-z]*)">(.*?)</li>`)
	tags        = regexp.MustCompile(`<.*?>`)
)

// verdict is what the overview says in its first line, and the lines after it.
func (s *site) verdict(t testing.TB) (line string, notices []string) {
	t.Helper()
	body := s.get(t, "").expect(t, http.StatusOK).body
	found := verdictLine.FindStringSubmatchIndex(body)
	if found == nil {
		t.Fatalf("there is no verdict:\n%s", body)
	}
	if main := strings.Index(body, "<main"); strings.TrimSpace(tags.ReplaceAllString(body[main:found[0]], "")) != "Overview" {
		t.Errorf("before the verdict is %q", body[main:found[0]])
	}
	end := strings.Index(body, "<figure>")
	if end < 0 {
		end = strings.Index(body, "<form")
	}
	for _, n := range noticeLine.FindAllStringSubmatch(body[found[1]:end], -1) {
		notices = append(notices, html.UnescapeString(n[1]+" "+tags.ReplaceAllString(n[2], "")))
	}
	of := verdictLine.FindStringSubmatch(body)
	return strings.Join(of[1:], " "), notices
}

// Of a healthy deployment the overview says so in one line, though events are under way. What is
// wrong stands before all else, the alarms before the warnings.
func TestVerdict(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	if line, notices := s.verdict(t); line != " – Nothing has run yet 0 consumers, 0 workers" || notices != nil {
		t.Errorf("of an empty database: %q %q", line, notices)
	}
	s.append(t, happened(10)...)
	s.Exec(t, `UPDATE events SET created_at = now() + interval '1 day' WHERE global_position > 9`)
	s.place(t, "a", 9)
	s.place(t, "b", 10)
	s.staff(t, 1, fresh, "a", "b")
	s.staff(t, 2, fresh)
	for _, c := range []struct {
		change, undo, line string
		notices            []string
	}{
		{`SELECT 1`, `SELECT 1`, "good ✓ Healthy 2 consumers, 2 workers", nil},
		{`UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch' WHERE consumer_name = 'a'`, `UPDATE consumer_checkpoints SET paused_at = NULL, paused_by = NULL, paused_reason = NULL`,
			"warn ▲ 1 warning 2 consumers, 2 workers, 1 paused", []string{"warn ❚❚ 1 consumer paused: a"}},
		{`INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts) VALUES ('a', 1, 'Order', '1', gen_random_uuid(), 'Happened', 'boom', 1)`, `DELETE FROM consumer_dead_letters`,
			"warn ▲ 1 warning 2 consumers, 2 workers, 1 dead letter", []string{"warn ▲ 1 dead letter"}},
		{`UPDATE worker_nodes SET heartbeat_at = now() - interval '2 days' WHERE pid = 2`, `UPDATE worker_nodes SET heartbeat_at = now()`,
			"warn ▲ 1 warning 2 consumers, 1 worker, 1 silent worker", []string{"warn ▲ 1 silent worker"}},
		{`UPDATE events SET created_at = now() - interval '1 hour' WHERE global_position = 10`, `UPDATE events SET created_at = now() + interval '1 day' WHERE global_position = 10`,
			"bad ✕ 1 alarm 2 consumers, 2 workers, 1 late", []string{"bad ✕ 1 consumer late: a"}},
		{`DELETE FROM consumer_assignments WHERE consumer_name = 'a'`, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'a', worker_id FROM worker_nodes WHERE pid = 1`,
			"bad ✕ 1 alarm 2 consumers, 2 workers, 1 that nobody runs", []string{"bad ✕ 1 consumer that nobody runs: a"}},
		{`UPDATE consumer_checkpoints SET last_position = 10 WHERE consumer_name = 'a'; DELETE FROM consumer_assignments WHERE consumer_name = 'a'`, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'a', worker_id FROM worker_nodes WHERE pid = 1`,
			"bad ✕ 1 alarm 2 consumers, 2 workers, 1 that nobody runs", []string{"bad ✕ 1 consumer that nobody runs: a"}},
		{`UPDATE worker_nodes SET consumers = '{a,b}', partitions = jsonb_build_object('a', jsonb_build_object('Count', 1, 'Scope', jsonb_build_object('Types', CASE pid WHEN 1 THEN '["A", "B"]'::jsonb ELSE '["A"]' END)))`, `UPDATE worker_nodes SET partitions = NULL`,
			"warn ▲ 1 warning 2 consumers, 2 workers, 1 complaint", []string{"warn ▲ consumer a: the builds select different events: h:1 may run it, selecting A, B; h:2 waits, selecting A"}},
		{`UPDATE worker_nodes SET heartbeat_at = now() - interval '2 days'`, `UPDATE worker_nodes SET heartbeat_at = now()`,
			"bad ✕ 2 alarms, 1 warning 2 consumers, 0 workers, 2 silent workers, 2 whose worker is silent",
			[]string{"bad ✕ no worker runs", "bad ✕ 2 consumers whose worker is silent: a, b", "warn ▲ 2 silent workers"}},
		{`INSERT INTO jobs_queues (name, paused_at, paused_by, paused_reason) VALUES ('mail', now(), 'ann', '<lunch>')`, `DELETE FROM jobs_queues`,
			"bad ✕ 1 alarm 2 consumers, 2 workers, 1 complaint", []string{"bad ✕ queue mail: paused by ann (<lunch>)"}},
		{`ALTER SEQUENCE events_global_position_seq CACHE 32`, `ALTER SEQUENCE events_global_position_seq CACHE 1`,
			"bad ✕ 1 alarm 2 consumers, 2 workers, the log cannot be read", nil},
	} {
		s.Exec(t, c.change)
		line, notices := s.verdict(t)
		if line != c.line || c.notices != nil && !slices.Equal(notices, c.notices) {
			t.Errorf("after %s:\n%s\n%q, want\n%s\n%q", c.change, line, notices, c.line, c.notices)
		}
		s.Exec(t, c.undo)
		if line, notices := s.verdict(t); line != "good ✓ Healthy 2 consumers, 2 workers" || notices != nil {
			t.Fatalf("after %s: %s\n%q", c.undo, line, notices)
		}
	}
}

// An event that has been under way for a moment is no delay. Consumers are behind after 5 s.
func TestBehind(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.append(t, happened(1)...)
	s.place(t, "c", 0)
	s.staff(t, 1, fresh, "c")
	for age, want := range map[string]string{"-1 day": "behind", "83 ms": "up to date", "6 s": "behind", "31 s": "late"} {
		// The age grows by what the page takes: read again if that was too long.
		await(t, "the state "+want, func() bool {
			s.Exec(t, `UPDATE events SET created_at = clock_timestamp() - $1::interval`, age)
			return strings.Contains(s.get(t, "").body, "</span> "+want+"</td>")
		})
	}
}

// The picture is not grey while the workers' word of the log is some seconds old: what a consumer
// has passed was safe.
func TestPictureOfABusyLog(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT i, 'Order', i, 1, gen_random_uuid(), 'Happened', '' FROM generate_series(1, 1000) AS i`)
	s.Exec(t, `SELECT setval('events_global_position_seq', 1000)`)
	s.settle(t, 900)
	s.place(t, "c", 998)
	body := s.get(t, "").body
	if !strings.Contains(body, "safe up to <b>998</b>") {
		t.Errorf("the checkpoint is above what is safe:\n%s", body)
	}
	var safe, settled float64
	for name, width := range map[string]*float64{"safe": &safe, "settled": &settled} {
		found := regexp.MustCompile(`<rect class="` + name + `" x="0" y="20" width="([0-9.]+)"`).FindStringSubmatch(body)
		if found == nil {
			t.Fatalf("%s is not drawn:\n%s", name, body)
		}
		if _, err := fmt.Sscan(found[1], width); err != nil {
			t.Fatal(err)
		}
	}
	if settled < 300 || safe < 800 || safe >= 1000 {
		t.Errorf("settled is drawn up to %v, safe up to %v of 1000", settled, safe)
	}
}

// Each page names the database and the environment, those of refusals too, and says neither to those
// who may see nothing.
func TestWhereOnEveryPage(t *testing.T) {
	t.Parallel()
	level := console.Operate
	s := newSite(t, console.Options{Environment: "prod<1>", Access: func(*http.Request) console.Grant { return console.Grant{Operator: "ann", Level: level} }})
	s.place(t, "c", 0)
	var name string
	if err := s.DB.QueryRow(`SELECT current_database()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	says := []string{`<strong class="where">` + name + `, prod&lt;1&gt;</strong>`, " · " + name + ", prod&lt;1&gt; · pgfrontier</title>"}
	pages := []string{"", "consumer?name=c", "consumer?name=nobody", "letters", "workers", "blocked", "gaps", "event", "operations", "queues", "jobworkers", "jobs", "job?id=1", "schedules", "flows", "nowhere"}
	for _, page := range pages {
		body := s.get(t, page).body
		if !strings.Contains(body, says[0]) || !strings.Contains(body, says[1]) {
			t.Errorf("%q does not say where it is:\n%s", page, body)
		}
	}
	form := with(s.get(t, "consumer?name=c").hidden(t, `value="pause"`), "reason", "r")
	if body := s.do(t, http.MethodPost, "change", form).expect(t, http.StatusOK).body; !strings.Contains(body, says[0]) {
		t.Errorf("a preview does not say where it is:\n%s", body)
	}
	level = console.None
	for _, page := range pages {
		if body := s.get(t, page).expect(t, http.StatusForbidden).body; strings.Contains(body, name) || strings.Contains(body, "prod") {
			t.Errorf("%q tells a stranger where it is:\n%s", page, body)
		}
	}
}

// ask reads a page of a console that has no server.
func ask(t testing.TB, c *console.Console, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Body.String()
}

// A console whose database is away says which environment it is of.
func TestWhereWithoutADatabase(t *testing.T) {
	t.Parallel()
	d := newSite(t, console.Options{})
	away := d.OpenPQ(t)
	_ = away.Close()
	c := console.New(away, console.Options{Environment: "staging"})
	defer c.Close()
	body := ask(t, c, "/")
	if !strings.Contains(body, `<strong class="where">staging</strong>`) {
		t.Errorf("it does not say where it is:\n%s", body)
	}
	if body := ask(t, console.New(nil, console.Options{}), "/"); strings.Contains(body, `class="where"`) {
		t.Errorf("without a database:\n%s", body)
	}
}
