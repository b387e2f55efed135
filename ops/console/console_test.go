package console_test

import (
	"encoding/base64"
	"fmt"
	"go/build"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
	"github.com/pgfrontier/worker/store"
)

// furnished is a console that has something on every page.
func furnished(t testing.TB, o console.Options) (s *site, pages []string) {
	t.Helper()
	s = newSite(t, o)
	s.append(t, happened(5)...)
	s.place(t, "totals_v1", 2)
	s.place(t, "mail_v1", 5)
	s.settle(t, 4)
	s.split(t, "split_v1", 1, 3)
	s.letters(t, "totals_v1", "boom", 2)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		VALUES ('mail_v1', gen_random_uuid(), 3, 3, 1, 'open', 3, 3)`)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, status) VALUES (gen_random_uuid(), '{totals_v1}', 'host7', 4242, '{"Safe": 4, "Consumers": [{"Name": "totals_v1", "LastError": "no customer"}]}')`)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 's', clock_timestamp())`)
	open, failed := s.enqueue(t, jobs.StateAvailable), s.enqueue(t, jobs.StateFailed)
	return s, []string{"", "consumer?name=totals_v1", "consumer?name=mail_v1", "consumer?name=split_v1", "letters", "letters?consumer=totals_v1", "letter?consumer=totals_v1&position=1", "operations", "operations?consumer=totals_v1",
		"workers", "blocked", "blocked?queries=1", "gaps", "gaps?consumer=mail_v1", "event", "event?position=1", "plan", "queues", "jobworkers", "jobs", "jobs?state=failed", fmt.Sprint("job?id=", open), fmt.Sprint("job?id=", failed), "schedules", "flows"}
}

// Each page is there below any path, as HTML and as JSON, and needs nothing that the policy
// forbids.
func TestPages(t *testing.T) {
	t.Parallel()
	s, pages := furnished(t, console.Options{Access: operators})
	link := regexp.MustCompile(`(?:href|action|src)="([^"]*)"`)
	inline := regexp.MustCompile(`(?i)<script(?: [^>]*)?>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:`)
	for _, page := range pages {
		got := s.get(t, page).expect(t, http.StatusOK)
		if p := got.header.Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none'; ") || strings.Contains(p, "unsafe") || got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", page, got.header)
		}
		if found := inline.FindString(got.body); found != "" {
			t.Errorf("%s has %q inline", page, found)
		}
		for _, found := range link.FindAllStringSubmatch(got.body, -1) {
			if strings.HasPrefix(found[1], "/") || strings.Contains(found[1], ":") && !strings.Contains(found[1], "?") {
				t.Errorf("%s: %s is no relative link", page, found[0])
			}
			if found[1] == "change" || strings.HasPrefix(found[1], "#") {
				continue
			}
			if to := s.get(t, strings.TrimPrefix(strings.ReplaceAll(found[1], "&amp;", "&"), "./")); to.status != http.StatusOK && !strings.HasPrefix(found[1], "event?position=") {
				t.Errorf("%s: %s leads to status %d:\n%s", page, found[0], to.status, to.body)
			}
		}
		for _, table := range regexp.MustCompile(`(?s)<table>.*?</table>`).FindAllString(got.body, -1) {
			if !strings.Contains(table, "<caption>") || strings.Contains(table, "<th>") {
				t.Errorf("%s has a table without a caption, or a head without a scope:\n%s", page, table)
			}
		}
		var data map[string]any
		if s.read(t, page, &data); page != "event" && len(data) == 0 {
			t.Errorf("%s has no data", page)
		}
	}
}

func TestNoSuchPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.append(t, happened(2)...)
	s.place(t, "c", 2)
	s.letters(t, "c", "boom", 2)
	s.Exec(t, `DELETE FROM consumer_dead_letters WHERE global_position = 1`) // the next one is another
	for path, status := range map[string]int{"nowhere": 404, "consumer?name=nobody": 404, "letter?consumer=c&position=1": 404, "event?position=7": 404, "event?position=x": 400,
		"letters?consumer=c&older=soon": 400, "gaps?consumer=c&before=-1": 400, "job?id=7": 404, "consumer?name=%00": 404, "letters?consumer=%00": 400, "change": 405, "files/layout.html": 404} {
		s.get(t, path).expect(t, status)
	}
	s.do(t, http.MethodDelete, "", nil).expect(t, http.StatusMethodNotAllowed)
	s.do(t, http.MethodPost, "letters", nil).expect(t, http.StatusMethodNotAllowed)
}

const hostile = `</script><script>alert(1)</script>"'><img src=x onerror=alert(2)>{{.}}` + "\r\ndata: x\u202e"

// What stands in the tables stays text.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.append(t, store.Event{AggregateType: hostile, AggregateID: hostile, EventType: hostile, Payload: []byte(hostile)}, store.Event{AggregateType: hostile, AggregateID: "2", EventType: hostile, Payload: []byte(hostile)})
	name := `</script><i>&"'?+%`
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, paused_at, paused_by, paused_reason) VALUES ($1, 1, now(), $2, $2)`, name, hostile)
	s.letters(t, name, hostile, 1)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, build, status) VALUES (gen_random_uuid(), ARRAY[$1], $2, 1, $2, jsonb_build_object('FrontierError', $2::text, 'Unowned', jsonb_build_array($2::text)))`, name, hostile)
	s.Exec(t, `INSERT INTO jobs_workers (worker_id, kinds, hostname, pid, build) VALUES (gen_random_uuid(), ARRAY[$1], $1, 1, $1)`, hostile)
	for _, past := range []string{"consumer", "jobs"} {
		s.Exec(t, `INSERT INTO `+past+`_past_workers (worker_id, stopped_at, how, hostname, build) VALUES (gen_random_uuid(), clock_timestamp(), 'failed', $1, $1)`, hostile)
	}
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ($1, 'pause', jsonb_build_object($2::text, $2::text), $2, $2)`, name, hostile)
	s.Exec(t, `INSERT INTO jobs (kind, queue, args) VALUES ($1, $1, jsonb_build_object('a', $1::text))`, hostile)
	id := s.count(t, `SELECT id FROM jobs`)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ($1, 's', now())`, hostile)
	q := url.QueryEscape(name)
	for _, page := range []string{"", "consumer?name=" + q, "letters?consumer=" + q, "letters?consumer=" + q + "&error=" + url.QueryEscape(hostile), "letter?position=1&consumer=" + q, "operations", "operations?consumer=" + q,
		"workers", "event?position=1", "queues", "jobworkers", "jobs", "jobs?kind=" + url.QueryEscape(hostile), fmt.Sprint("job?id=", id), "schedules", "flows?flow=" + url.QueryEscape(hostile), "?done=" + url.QueryEscape(hostile), "consumer?name=" + url.QueryEscape(hostile)} {
		got := s.get(t, page)
		if strings.Contains(got.body, "<script>") || strings.Contains(got.body, "<img") || strings.Contains(got.body, "<i>") {
			t.Errorf("%s: a text has become markup:\n%s", page, got.body)
		}
		if got.status == http.StatusOK && !strings.Contains(page, "done") && !strings.Contains(got.body, "&lt;/script&gt;") {
			t.Errorf("%s does not show the text:\n%s", page, got.body)
		}
	}
	// It also stays what it is on its way through forms.
	form := s.get(t, "consumer?name="+q).hidden(t, `value="resume"`)
	made := s.do(t, http.MethodPost, "change", s.preview(t, with(form, "reason", hostile))).expect(t, http.StatusSeeOther)
	s.get(t, made.header.Get("Location")).expect(t, http.StatusOK)
	if n := s.count(t, `SELECT count(*) FROM consumer_operations WHERE operation = 'resume' AND reason LIKE '%{{.}}%'`); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// Without Access everybody reads, and nobody sees a payload or changes anything.
func TestWithoutAccess(t *testing.T) {
	t.Parallel()
	s, pages := furnished(t, console.Options{})
	event := happened(1)[0]
	payload, metadata := base64.StdEncoding.EncodeToString(event.Payload), base64.StdEncoding.EncodeToString(event.Metadata) // as bytes are in JSON
	for _, page := range pages {
		for _, accept := range []string{"text/html", "application/json"} {
			got := s.get(t, page, "Accept", accept).expect(t, http.StatusOK)
			if strings.Contains(got.body, "secret") || strings.Contains(got.body, payload) || strings.Contains(got.body, metadata) || strings.Contains(got.body, `"change"`) {
				t.Errorf("%s shows what it may not:\n%s", page, got.body)
			}
		}
	}
	expectRefused(t, s)
}

// expectRefused sends a form of each kind and expects that it is refused.
func expectRefused(t *testing.T, s *site) {
	t.Helper()
	job := fmt.Sprint(s.enqueue(t, jobs.StateAvailable))
	for _, on := range []string{"consumer", "job", "queue", "schedule"} {
		for _, kind := range []string{"pause", "resume", "skip", "reset", "partition", "retry", "discard", "cancel", "rerun", "cap", "rename", "shadow", "switch", "retire", "replay", "replay types", "acknowledge"} {
			for _, step := range []string{"", "make"} {
				form := url.Values{"on": {on}, "name": {"totals_v1"}, "kind": {kind}, "reason": {"r"}, "revision": {"0"}, "position": {job}, "number": {"1"}, "to": {"mail_v1"}, "step": {step}}
				s.do(t, http.MethodPost, "change", form).expect(t, http.StatusForbidden)
			}
		}
	}
	if n := s.count(t, `SELECT (SELECT count(*) FROM consumer_operations) + (SELECT count(*) FROM jobs_operations)`); n != 0 {
		t.Errorf("%d operations", n)
	}
}

// Those who may not make a change have no form for it, and their forms are refused.
func TestLevels(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]console.Grant{
		"payloads":   {Operator: "ann", Level: console.Payloads},
		"nobody":     {Level: console.Operate},
		"not so":     {Operator: "ann", Level: console.Operate, Allow: func(console.Action) bool { return false }},
		"other ones": {Operator: "ann", Level: console.Operate, Allow: func(a console.Action) bool { return a.Name == "mail_v1" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := furnished(t, console.Options{Access: func(*http.Request) console.Grant { return g }})
			if got := s.get(t, "consumer?name=totals_v1").expect(t, http.StatusOK); strings.Contains(got.body, "<form") {
				t.Errorf("there is a form:\n%s", got.body)
			}
			if got := s.get(t, "event?position=1").expect(t, http.StatusOK); !strings.Contains(got.body, "4711") {
				t.Errorf("the payload is not shown:\n%s", got.body)
			}
			expectRefused(t, s)
		})
	}
	s, pages := furnished(t, console.Options{Access: func(*http.Request) console.Grant { return console.Grant{Operator: "ann"} }})
	for _, page := range append(pages, "live?page=", "nowhere", "operations.csv", "jobsoperations.csv") {
		if got := s.get(t, page).expect(t, http.StatusForbidden); strings.Contains(got.body, "totals_v1") || strings.Contains(got.body, "4711") {
			t.Errorf("%s shows something:\n%s", page, got.body)
		}
	}
}

// Allow is asked about what is changed: of a job, about its queue, and of a unit, about its
// consumer. What it allows of one it does not allow of another with the same name.
func TestAllow(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []console.Action
	allowed := console.Action{On: console.OnConsumer, Kind: ops.KindPause, Name: "slow"}
	s := newSite(t, console.Options{Access: func(*http.Request) console.Grant {
		return console.Grant{Operator: "ann", Level: console.Operate, Allow: func(a console.Action) bool {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, a)
			return a == allowed
		}}
	}})
	s.place(t, "slow", 0)
	job := fmt.Sprint(s.enqueue(t, jobs.StateAvailable)) // in the queue "slow"
	for _, form := range []struct {
		form   url.Values
		asked  console.Action
		status int
	}{
		{url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"slow"}}, allowed, http.StatusOK},
		{url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"slow#000-7ff"}}, allowed, http.StatusNotFound},
		{url.Values{"on": {"consumer"}, "kind": {"retire"}, "name": {"slow"}, "revision": {"0"}}, console.Action{On: console.OnConsumer, Kind: ops.KindRetire, Name: "slow"}, http.StatusForbidden},
		{url.Values{"on": {"queue"}, "kind": {"pause"}, "name": {"slow"}}, console.Action{On: console.OnQueue, Kind: ops.KindPause, Name: "slow"}, http.StatusForbidden},
		{url.Values{"on": {"queue"}, "kind": {"acknowledge"}, "name": {"slow"}}, console.Action{On: console.OnQueue, Kind: ops.KindAcknowledge, Name: "slow"}, http.StatusForbidden},
		{url.Values{"on": {"schedule"}, "kind": {"pause"}, "name": {"slow"}}, console.Action{On: console.OnSchedule, Kind: ops.KindPause, Name: "slow"}, http.StatusForbidden},
		{url.Values{"on": {"job"}, "kind": {"cancel"}, "name": {"other"}, "position": {job}}, console.Action{On: console.OnJob, Kind: ops.KindCancel, Name: "slow"}, http.StatusForbidden},
	} {
		asked = nil
		s.do(t, http.MethodPost, "change", with(form.form, "reason", "r")).expect(t, form.status)
		if len(asked) != 1 || asked[0] != form.asked {
			t.Errorf("%v: asked about %v, want %v", form.form, asked, form.asked)
		}
	}
	s.split(t, "split", 1, 2)
	s.append(t, happened(1)...)
	s.letters(t, "split#000-7ff", "boom", 1)
	asked = nil
	s.get(t, "letters?consumer=split%23000-7ff").expect(t, http.StatusOK)
	if len(asked) != 2 || asked[0].Name != "split" || asked[1].Name != "split" {
		t.Errorf("for the letters of a unit: asked about %v", asked)
	}
	if body := s.get(t, "queues").body; strings.Contains(body, `action="change"`) {
		t.Errorf("there is a form for what is not allowed:\n%s", body)
	}
}

// A form of another site changes nothing.
func TestForeignForm(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 0)
	form := s.preview(t, url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"c"}, "reason": {"r"}, "revision": {"0"}})
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		s.do(t, http.MethodPost, "change", form, headers...).expect(t, http.StatusForbidden)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Errorf("%d operations", n)
	}
	s.do(t, http.MethodPost, "change", form, "Sec-Fetch-Site", "same-origin", "Origin", s.server.URL).expect(t, http.StatusSeeOther)
}

// A database that is away is a page that says so.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	s, pages := furnished(t, console.Options{Access: operators})
	form := s.preview(t, url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"mail_v1"}, "reason": {"r"}, "revision": {"0"}})
	if err := s.DB.Close(); err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if page == "event" || page == "plan" {
			continue
		}
		if got := s.get(t, page).expect(t, http.StatusServiceUnavailable); !strings.Contains(got.body, "did not answer") || got.header.Get("Retry-After") == "" {
			t.Errorf("%s:\n%s", page, got.body)
		}
	}
	s.do(t, http.MethodPost, "change", form).expect(t, http.StatusServiceUnavailable)
}

// What may be loaded, and by whom, is said with each answer.
func TestHeaders(t *testing.T) {
	t.Parallel()
	s, _ := furnished(t, console.Options{Access: operators})
	pause := url.Values{"on": {"consumer"}, "kind": {"pause"}, "name": {"totals_v1"}, "reason": {"r"}}
	for name, got := range map[string]answer{
		"page":     s.get(t, ""),
		"json":     s.get(t, "", "Accept", "application/json"),
		"style":    s.get(t, "style.css"),
		"script":   s.get(t, "live.js"),
		"download": s.get(t, "operations.csv"),
		"no page":  s.get(t, "nowhere").expect(t, http.StatusNotFound),
		"updates":  s.do(t, http.MethodHead, "live?page=", nil).expect(t, http.StatusOK),
		"preview":  s.do(t, http.MethodPost, "change", pause).expect(t, http.StatusOK),
		"foreign":  s.do(t, http.MethodPost, "change", pause, "Origin", "https://evil.example").expect(t, http.StatusForbidden),
		"refused":  s.do(t, http.MethodPost, "change", nil).expect(t, http.StatusBadRequest),
	} {
		for header, want := range map[string]string{
			"Content-Security-Policy":      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
			"Referrer-Policy":              "same-origin",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if is := got.header.Get(header); is != want {
				t.Errorf("%s: %s is %q, want %q", name, header, is, want)
			}
		}
		if kept := got.header.Get("Cache-Control"); kept != "no-store" && !(kept == "no-cache" && (name == "style" || name == "script")) {
			t.Errorf("%s: Cache-Control is %q", name, kept)
		}
	}
}

// Below a path that lacks its slash, the links would lead elsewhere.
func TestBeside(t *testing.T) {
	t.Parallel()
	s, _ := furnished(t, console.Options{Access: operators})
	for path, to := range map[string]string{"/a/b": "./b/", "/a/b?state=late": "./b/?state=late", "/a:b": "./a:b/"} {
		s.server.Config.Handler = http.StripPrefix(strings.SplitN(path, "?", 2)[0], s.Console) // as other routers do
		s.base = s.server.URL
		if got := s.get(t, path).expect(t, http.StatusTemporaryRedirect); got.header.Get("Location") != to {
			t.Errorf("%s goes on to %q, want %q", path, got.header.Get("Location"), to)
		}
	}
	s.server.Config.Handler = s.Console
	for path, status := range map[string]int{"/": 200, "/style.css": 200, "/consumer?name=totals_v1": 200, "/consumer/?name=totals_v1": 404, "/workers/": 404, "//": 404, "/change/": 404} {
		s.get(t, path).expect(t, status)
	}
	s.server.Config.Handler = http.StripPrefix("/a/b/", s.Console) // with the slash it works, too
	for _, path := range []string{"/a/b/", "/a/b/workers"} {
		s.get(t, path).expect(t, http.StatusOK)
	}
}

// A role that lacks rights is told where they are listed.
func TestRoleWithoutRights(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	role := "role_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	s.Exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() { s.Exec(t, `DROP ROLE `+role) })
	cfg, err := pgx.ParseConfig(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["role"] = role
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	c := console.New(db, console.Options{})
	defer c.Close()
	s.server.Config.Handler = http.StripPrefix(prefix, c)
	if got := s.get(t, "").expect(t, http.StatusInternalServerError); !strings.Contains(got.body, "lacks a right") {
		t.Error(got.body)
	}
}

// A server that takes no changes shows its pages, and says where changes are made.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	s, pages := furnished(t, console.Options{})
	cfg, err := pgx.ParseConfig(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["default_transaction_read_only"] = "on"
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	c := console.New(db, console.Options{Access: operators})
	defer c.Close()
	s.server.Config.Handler = http.StripPrefix(prefix, c)
	for _, page := range pages {
		s.get(t, page).expect(t, http.StatusOK)
	}
	for _, form := range []url.Values{{"on": {"consumer"}, "kind": {"pause"}, "name": {"mail_v1"}}, {"on": {"queue"}, "kind": {"pause"}, "name": {"slow"}}} {
		if got := s.do(t, http.MethodPost, "change", with(form, "reason", "r")).expect(t, http.StatusServiceUnavailable); !strings.Contains(got.body, "the primary") {
			t.Error(got.body)
		}
	}
}

// What New got wrong is on every page.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	for says, c := range map[string]*console.Console{
		"db is nil": console.New(nil, console.Options{}),
		"Names":     console.New(s.DB, console.Options{Names: store.Names{Jobs: "a.b.c.d"}}),
	} {
		defer c.Close()
		s.server.Config.Handler = http.StripPrefix(prefix, c)
		for _, page := range []string{"", "consumer?name=c", "letters", "workers", "queues", "job?id=1", "flows"} {
			if got := s.get(t, page).expect(t, http.StatusInternalServerError); !strings.Contains(got.body, says) {
				t.Errorf("%q: %s", page, got.body)
			}
		}
	}
}

// The console needs the standard library, the project's packages, and the type of a worker's ID.
func TestImports(t *testing.T) {
	t.Parallel()
	p, err := build.ImportDir(".", 0)
	if err != nil || len(p.Imports) == 0 {
		t.Fatal(p.Imports, err)
	}
	for _, path := range p.Imports {
		if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") && !strings.HasPrefix(path, "github.com/pgfrontier/worker/") && path != "github.com/google/uuid" {
			t.Errorf("it imports %s", path)
		}
	}
}
