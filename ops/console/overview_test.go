package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/ops/console"
)

// What no worker has said yet, the settled mark says at least.
func TestSafeIsNoLessThanSettled(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.append(t, happened(5)...)
	s.settle(t, 4)
	if body := s.get(t, "").body; strings.Count(body, "safe up to <b>4</b>")+strings.Count(body, "safe up to 4,") != 2 {
		t.Errorf("another mark is safe:\n%s", body)
	}
}

// Thousands of consumers come in pages, each once, and the picture stays a picture.
func TestManyConsumers(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.append(t, happened(1)...)
	n := tier.Amount(1_000, 2_000)
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, paused_at, paused_by, paused_reason)
		SELECT 'C_' || i, i % 2, CASE WHEN i <= 5 THEN now() END, CASE WHEN i <= 5 THEN 'bob' END, CASE WHEN i <= 5 THEN 'lunch' END FROM generate_series(1, $1::int) AS i`, n)
	s.letters(t, "C_7", "boom", 1)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid) SELECT gen_random_uuid(), CASE WHEN i < 3 THEN '{C_7}'::text[] ELSE '{}' END, 'host' || i, 1 FROM generate_series(1, 4) AS i`)
	for _, page := range []string{"", "workers"} {
		seen, pages := map[string]bool{}, 0
		for after := ""; ; pages++ {
			var p struct {
				Consumers []ops.Consumer
				Matching  int
				Next      string
			}
			q := url.Values{"after": {after}}.Encode()
			s.read(t, page+"?"+q, &p)
			for _, c := range p.Consumers {
				if seen[c.Name] {
					t.Fatalf("%s comes twice", c.Name)
				}
				seen[c.Name] = true
			}
			html := s.get(t, page+"?"+q).expect(t, http.StatusOK).body
			if p.Matching != n || strings.Contains(html, `rel="next"`) != (p.Next != "") || len(html) > 100_000 {
				t.Fatalf("%q after %q: %d match, then %q, %d bytes", page, after, p.Matching, p.Next, len(html))
			}
			if after = p.Next; after == "" {
				break
			}
		}
		if len(seen) != n || pages != n/100-1 {
			t.Errorf("%q: %d consumers on %d pages", page, len(seen), pages)
		}
	}
	for query, want := range map[string]string{
		"find=c_777":              "[C_777]",
		"state=paused":            "[C_1 C_2 C_3 C_4 C_5]",
		"state=paused&find=_4":    "[C_4]",
		"state=with+dead+letters": "[C_7]",
		"state=late":              "[]",
		"find=nobody":             "[]",
		"find=C_9&after=C_998":    "[C_999]",
	} {
		var p struct{ Consumers []struct{ Name string } }
		names := []string{}
		s.read(t, "?"+query, &p)
		for _, c := range p.Consumers {
			names = append(names, c.Name)
		}
		if fmt.Sprint(names) != want {
			t.Errorf("%s: %v, want %s", query, names, want)
		}
	}
	for _, page := range []string{"", "workers"} {
		address := page + "?find=c_&state=nobody+runs+it&after=C_1"
		s.get(t, address).expectNext(t, address, "after")
	}
	// Updates are those of the page that is open.
	v := s.watch(t, "live?page=&state=paused&find=_4")
	if event, _ := v.next(t); !strings.Contains(event, `data-key="C_4"`) || strings.Contains(event, `data-key="C_3"`) {
		t.Errorf("%.2000s", event)
	}
	live := regexp.MustCompile(`data-live="([^"]*)"`).FindStringSubmatch(s.get(t, "?find=C_9&after=C_998").body)
	if live == nil {
		t.Fatal("the second page has no updates")
	}
	if event, _ := s.watch(t, html.UnescapeString(live[1])).next(t); !strings.Contains(event, `data-key="C_999"`) || strings.Contains(event, `data-key="C_9"`) {
		t.Errorf("an update of a later page: %.2000s", event)
	}
	s.Exec(t, `UPDATE worker_nodes SET heartbeat_at = now()`) // reading so many pages may take long
	if page := s.get(t, "workers?find=C_7").body; !strings.Contains(page, `<td>nobody</td><td>host1:1, host2:1</td>`) {
		t.Errorf("who can run C_7:\n%s", page)
	}
}

// A single worker that has the code is named, and none of several is left out of "all".
func TestWhoCanRunIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.place(t, "c", 0)
	for i, want := range []string{"h:1", "all", "all but h:3", "h:1, h:2"} {
		s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, consumers) VALUES (gen_random_uuid(), 'h', $1, CASE WHEN $1 < 3 THEN '{c}'::text[] ELSE '{}' END)`, i+1)
		if body := s.get(t, "workers").body; !strings.Contains(body, "<td>nobody</td><td>"+want+"</td>") {
			t.Errorf("with %d workers, want %q:\n%s", i+1, want, body)
		}
	}
}

// A page shows how far a consumer was behind, once it has been open for a while.
func TestSparklineOnPages(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.place(t, "c", 0)
	for _, page := range []string{"", "consumer?name=c"} {
		if strings.Contains(s.get(t, page).body, `class="spark"`) {
			t.Errorf("%q: there is a line of nothing", page)
		}
	}
	now := time.Now()
	for ago, lag := range map[int]int64{120: 5, 60: 4_000, 30: 7} {
		s.Remember([]ops.Consumer{{Name: "c", HeadLag: lag}}, now.Add(-time.Duration(ago)*time.Second))
	}
	for _, page := range []string{"", "consumer?name=c"} {
		if body := s.get(t, page).body; !strings.Contains(body, `class="spark"`) || !strings.Contains(body, `aria-label="behind by 4,000 at most in the last 15 minutes"`) {
			t.Errorf("%q:\n%s", page, body)
		}
	}
}

// A consumer's page says which live workers demand another number of partitions.
func TestWorkersDisagreeOnPartitions(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.split(t, "c", 0, 0)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, consumers, partitions) VALUES (gen_random_uuid(), 'h', 1, '{c}', '{"c": {"count": 2}}')`)
	if body := s.get(t, "consumer?name=c").body; strings.Contains(body, "Partitions:") {
		t.Errorf("one worker does not agree with itself:\n%s", body)
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, consumers, partitions) VALUES (gen_random_uuid(), 'h', 2, '{c}', '{"c": {"count": 3, "key": "<k>"}}')`)
	const says = "it stays at 2 partitions, since the workers' builds ask for different counts: h:2 asks for 3 by the key "
	if body := s.get(t, "consumer?name=c").body; !strings.Contains(body, "Partitions:</strong> "+html.EscapeString(says)+"&lt;k&gt;; h:1 asks for 2. ") {
		t.Errorf("the page does not list the demands:\n%s", body)
	}
	var page struct{ Disagreement string }
	if s.read(t, "consumer?name=c", &page); !strings.HasPrefix(page.Disagreement, says) {
		t.Errorf("%q", page.Disagreement)
	}
	s.Exec(t, `UPDATE worker_nodes SET heartbeat_at = now() - interval '1 hour', heartbeat_timeout = NULL WHERE pid = 2`)
	if body := s.get(t, "consumer?name=c").body; strings.Contains(body, "Partitions:") {
		t.Errorf("the dead have a say:\n%s", body)
	}
}

// What keeps partitions from going on is on the page of their consumer, with each partition.
func TestErrorOfAPartition(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.split(t, "c", 0, 0)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, hostname, pid, status) VALUES (gen_random_uuid(), 'h', 7, '{"Consumers": [{"Name": "c#800-fff", "LastError": "no <customer>"}, {"Name": "c#000-7ff", "LastError": "no order"}]}')`)
	if body := s.get(t, "consumer?name=c").body; !strings.Contains(body, "Last error:</strong> c#000-7ff: no order") ||
		!strings.Contains(body, `000-7ff <span class="bad">✕ no order</span>`) || !strings.Contains(body, `800-fff <span class="bad">✕ no &lt;customer&gt;</span>`) {
		t.Errorf("the page does not say what is wrong:\n%s", body)
	}
}

// staff adds a worker that was heard of so many seconds ago, and gives it consumers and units.
func (s *site) staff(t testing.TB, pid, age int, runs ...string) {
	t.Helper()
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, heartbeat_at, heartbeat_timeout)
		VALUES (lpad($1::int::text, 32, '0')::uuid, '{}', 'h', $1::int, now() - greatest($2::int, 0) * interval '1 s', CASE WHEN $2::int < 0 THEN interval '1 day' END)`, pid, age)
	for _, name := range runs {
		s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) VALUES ($1, lpad($2::int::text, 32, '0')::uuid)`, name, pid)
	}
}

const fresh = -1 // a heartbeat that stays fresh, however slow the test is

// The state of a consumer says what its worker and its events show. One failing partition is
// enough, unless it is paused.
func TestStates(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.append(t, happened(3)...)
	s.Exec(t, `UPDATE events SET created_at = now() + CASE WHEN global_position < 3 THEN -1 ELSE 1 END * interval '1 hour'`)
	const living, old, gone, none = 1, 2, 3, 4 // workers
	runs := map[int][]string{}
	put := func(name string, position int64, paused bool, worker int) {
		s.place(t, name, position)
		if paused {
			s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch' WHERE consumer_name = $1`, name)
		}
		runs[worker] = append(runs[worker], name)
	}
	type unit struct {
		position int64
		paused   bool
		worker   int
	}
	want := map[string]string{}
	for i, c := range []struct {
		want  string
		units []unit // a single one: the consumer is not split
	}{
		{"good ✓ up to date", []unit{{3, false, living}}},
		{"good → behind", []unit{{2, false, living}}}, // how long the event has waited is not known
		{"bad ▲ late", []unit{{1, false, living}}},
		{"bad ✕ silent", []unit{{3, false, old}}},
		{"bad ✕ silent", []unit{{1, false, old}}},
		{"bad ✕ silent", []unit{{3, false, gone}}},
		{"bad ✕ nobody runs it", []unit{{1, false, none}}},
		{"bad ✕ nobody runs it", []unit{{3, false, none}}},
		{"warn ❚❚ paused", []unit{{1, true, old}}},
		{"warn ❚❚ paused", []unit{{1, true, none}}},
		{"good → behind", []unit{{2, false, living}, {3, false, living}}},
		{"bad ✕ silent", []unit{{2, false, living}, {3, false, old}}},
		{"bad ✕ silent", []unit{{3, false, gone}, {3, false, living}}},
		{"bad ✕ nobody runs it", []unit{{3, false, living}, {2, false, none}}},
		{"bad ✕ nobody runs it", []unit{{3, false, old}, {2, false, none}}},
		{"bad ✕ nobody runs it", []unit{{2, false, living}, {3, false, none}}},
		{"bad ✕ nobody runs it", []unit{{3, false, none}, {3, false, old}}},
		{"good → behind", []unit{{2, true, none}, {3, false, living}}},
		{"good → behind", []unit{{2, true, old}, {3, false, living}}},
		{"bad ✕ nobody runs it", []unit{{2, true, living}, {2, false, none}}},
		{"warn ❚❚ paused", []unit{{2, true, old}, {2, true, none}}},
	} {
		name := fmt.Sprintf("c%02d", i)
		want[name] = c.want
		if len(c.units) == 1 {
			put(name, c.units[0].position, c.units[0].paused, c.units[0].worker)
			continue
		}
		s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, split_at, paused_at, paused_by, paused_reason) VALUES ($1, 0, now(), now(), 'partitions', 'split')`, name)
		for k, u := range c.units {
			put(name+[]string{"#000-7ff", "#800-fff"}[k], u.position, u.paused, u.worker)
		}
	}
	s.staff(t, living, fresh, runs[living]...)
	s.staff(t, old, 31, runs[old]...)
	s.staff(t, gone, fresh, runs[gone]...)
	s.Exec(t, `DELETE FROM worker_nodes WHERE pid = $1`, gone)
	body := s.get(t, "").expect(t, http.StatusOK).body
	for name, want := range want {
		row := regexp.MustCompile(`data-key="` + name + `">.*?<td class="([a-z]*)"><span aria-hidden="true">(.*?)</span> (.*?)</td>`).FindStringSubmatch(body)
		if row == nil || strings.Join(row[1:], " ") != want {
			t.Errorf("%s is %q, want %q", name, row, want)
		}
	}
	const said = "21 consumers, 1 worker, 1 silent worker, 3 paused, 1 late, 7 that nobody runs, 5 whose worker is silent"
	if !strings.Contains(body, `data-summary="`+said+`"`) || !strings.Contains(body, "open transactions. "+said+".") {
		t.Errorf("%q is not said:\n%s", said, body)
	}
	for state, matching := range map[string]int{"silent": 5, "nobody runs it": 7, "late": 1, "behind": 4} {
		var p struct{ Matching int }
		address := "?" + url.Values{"state": {state}}.Encode()
		if s.read(t, address, &p); p.Matching != matching || !strings.Contains(s.get(t, address).body, "<option selected>"+state+"</option>") {
			t.Errorf("%d are %s, or it is no choice; want %d", p.Matching, state, matching)
		}
	}
}

// A worker that is not heard of leads nothing and runs nothing, and its last error is not what
// keeps a consumer.
func TestSilentWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{Access: operators})
	s.split(t, "c", 0, 0)
	s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = NULL, paused_by = NULL, paused_reason = NULL WHERE split_at IS NULL`)
	s.staff(t, 1, fresh, "c#000-7ff", "c#800-fff")
	s.Exec(t, `UPDATE worker_nodes SET consumers = '{c}', partitions = '{"c": {"Count": 2}}', status = '{"Leader": true, "LoopError": "it hangs", "Unowned": ["d"], "Consumers": [{"Name": "c#000-7ff", "LastError": "no customer"}]}'`)
	says := func(page string, well bool, texts ...string) {
		t.Helper()
		body := s.get(t, page).body
		for _, text := range texts {
			if strings.Contains(body, text) != well {
				t.Errorf("%q: %q is there: %v\n%s", page, text, !well, body)
			}
		}
	}
	lives := map[string][]string{
		"":                {`data-summary="1 consumer, 1 worker, 2 complaints"`, "up to date</td>"},
		"workers":         {"★ leads", "<td>h:1</td><td>h:1</td>", "<td class=\"long\"><p>✕ loop: it hangs</p>"},
		"consumer?name=c": {`data-summary="c is up to date"`, "Last error:</strong> c#000-7ff: no customer", "<td>h:1</td>"},
	}
	silent := map[string][]string{
		"":                {`data-summary="1 consumer, 0 workers, 1 silent worker, 1 whose worker is silent"`, "</span> silent</td>"},
		"workers":         {"led, at its last heartbeat", "<td>h:1 (silent)</td><td>nobody</td>", "<td class=\"long\"><p>✕ silent, and said last:</p><p>✕ loop: it hangs</p><p>✕ c#000-7ff: no customer</p><p>✕ nobody runs: d</p></td>"},
		"consumer?name=c": {`data-summary="c is silent"`, "<td>h:1 (silent)</td>"},
	}
	tell := func(is, was map[string][]string) {
		t.Helper()
		for page := range is {
			says(page, true, is[page]...)
			says(page, false, was[page]...)
		}
	}
	tell(lives, silent)
	v := s.watch(t, "live?page=")
	v.until(t, lives[""][0])
	s.Exec(t, `UPDATE worker_nodes SET heartbeat_at = now() - interval '31 s', heartbeat_timeout = NULL`)
	tell(silent, lives)
	v.until(t, silent[""][0])
	s.Exec(t, `UPDATE worker_nodes SET heartbeat_at = now(), heartbeat_timeout = '1 day'`)
	tell(lives, silent)
}

// A consumer's page says what it is to become, while it is not.
func TestConsumerIsOnItsWay(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.split(t, "c", 0, 0)
	for wanted, says := range map[int]string{0: "<dd>2</dd>", 2: "<dd>2</dd>", 3: "<dd>2, to become 3</dd>"} {
		s.Exec(t, `DELETE FROM consumer_assignments`)
		s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id, partitions) SELECT consumer_name, gen_random_uuid(), $1 FROM consumer_checkpoints WHERE consumer_name LIKE 'c#%'`, wanted)
		if body := s.get(t, "consumer?name=c").body; !strings.Contains(body, "<dt>Partitions</dt>"+says) {
			t.Errorf("%d are wanted:\n%s", wanted, body)
		}
	}
}

// Statements of those who hold the log back may hold values of users: only who may see
// payloads sees them, and only on request.
func TestStatementsOfBlockers(t *testing.T) {
	t.Parallel()
	level := console.Payloads
	s := newSite(t, console.Options{Access: func(*http.Request) console.Grant { return console.Grant{Level: level} }})
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload) SELECT 'Order', 'sesame', 1, gen_random_uuid(), 'Happened', ''`); err != nil {
		t.Fatal(err)
	}
	for _, accept := range []string{"text/html", "application/json"} {
		if body := s.get(t, "blocked?queries=1", "Accept", accept).body; !strings.Contains(body, "sesame") {
			t.Errorf("the statement is not shown:\n%s", body)
		}
		if body := s.get(t, "blocked", "Accept", accept).body; strings.Contains(body, "sesame") {
			t.Errorf("the statement is shown unasked:\n%s", body)
		}
	}
	v := s.watch(t, "live?page=blocked&queries=1")
	if event, _ := v.next(t); strings.Contains(event, "sesame") || !strings.Contains(event, "idle in transaction") {
		t.Errorf("an update has the statement, or none:\n%s", event)
	}
	level = console.Read
	for _, accept := range []string{"text/html", "application/json"} {
		if body := s.get(t, "blocked?queries=1", "Accept", accept).expect(t, http.StatusOK).body; strings.Contains(body, "sesame") {
			t.Errorf("who may not see payloads sees the statement:\n%s", body)
		}
	}
}
