package browser

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// No page breaks a rule of WCAG 2.2 AA that a program can judge, in both themes, on wide and
// on narrow screens; none is wider than the screen; and the browser has nothing to complain of.
func TestAccessibility(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	pages := s.furnish(t, "")
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, heartbeat_at, status) VALUES (gen_random_uuid(), '{shipping_v1}', 'host8', 7, now() - interval '1 hour', '{"Leader": true, "LoopError": "it hangs"}')`)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'shipping_v1', worker_id FROM worker_nodes WHERE pid = 7`)
	forms := map[string]string{ // pages that answer a form, by the page that has it
		"consumer?name=stopped_v1":      "#retire form",  // wants the name typed
		"letters?consumer=totals_v1":    "#discard form", // of many
		"consumer?name=totals_v1":       "#reset form",   // of a running one
		"consumer?name=mail_v1":         "#replay form",  // is refused
		"letters?consumer=mail_v1":      "",              // none
		"gaps":                          "",              // to choose from
		"?state=paused":                 "",              // found
		"?state=silent":                 "",              // found
		"consumer?name=nobody":          "",              // is not there
		"event":                         "",              // to choose from
		"operations?consumer=totals_v1": "",              // of one
	}
	for page := range forms {
		if !slices.Contains(pages, page) {
			pages = append(pages, page)
		}
	}
	b := open(t)
	axe := axeCore(t)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1200, 320} {
			b.look(t, width, theme)
			for _, page := range pages {
				b.run(t, chromedp.Navigate(s.base+page))
				b.judge(t, axe, fmt.Sprintf("%q, %s", page, theme), width)
				if form := forms[page]; form != "" {
					b.ask(t, form)
					b.judge(t, axe, fmt.Sprintf("%q after %s, %s", page, form, theme), width)
				}
			}
		}
	}
	b.expectQuiet(t, "404") // the pages that are nowhere
}

// judge checks a page with all that it can unfold.
func (b *tab) judge(t testing.TB, axe, page string, width int64) {
	t.Helper()
	evaluate[any](t, b, `for (const d of document.querySelectorAll("details")) d.open = true; null`)
	evaluate[any](t, b, axe+"\n;null")
	broken := evaluate[[]string](t, b, `axe.run(document, {preload: false, runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r =>
		r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary).join(" | ")))`)
	for _, v := range broken {
		t.Errorf("%s, %d px: %s", page, width, v)
	}
	if wide := evaluate[int64](t, b, `document.documentElement.scrollWidth`); wide > width {
		t.Errorf("%s: %d px wide on %d", page, wide, width)
	}
}

// The overview changes without a reload, and focus stays where it is.
func TestUpdate(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "/a/b"} {
		t.Run("at "+prefix+"/", func(t *testing.T) { update(t, prefix) })
	}
}

func update(t *testing.T, prefix string) {
	s := newSite(t, prefix)
	s.furnish(t, "")
	b := open(t)
	b.run(t, chromedp.Navigate(s.base))
	b.until(t, `document.documentElement.dataset.updates`)
	evaluate[any](t, b, `window.loaded = "once"; document.querySelector('[data-key="totals_v1"] a').focus(); null`)
	for _, change := range []struct{ statement, shown, order string }{
		{`UPDATE worker_nodes SET status = status - 'FrontierError'`, `!document.querySelector(".wrong").innerText.includes("lost")`, "mail_v1 shipping_v1 stopped_v1 totals_v1"},
		{`UPDATE consumer_checkpoints SET last_position = 77 WHERE consumer_name = 'totals_v1'`,
			`document.querySelector('[data-key="totals_v1"]').innerText.includes("77")`, "mail_v1 shipping_v1 stopped_v1 totals_v1"},
		{`INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('audit_v1', 1)`,
			`document.querySelector('[data-key="audit_v1"]')`, "audit_v1 mail_v1 shipping_v1 stopped_v1 totals_v1"},
		{`DELETE FROM consumer_checkpoints WHERE consumer_name = 'mail_v1'`,
			`!document.querySelector('[data-key="mail_v1"]')`, "audit_v1 shipping_v1 stopped_v1 totals_v1"},
		{`UPDATE consumer_checkpoints SET consumer_name = CASE consumer_name WHEN 'audit_v1' THEN 'archive_v1' ELSE 'zeta_v1' END WHERE consumer_name IN ('audit_v1', 'shipping_v1')`,
			`document.querySelector('[data-key="archive_v1"]')`, "archive_v1 stopped_v1 totals_v1 zeta_v1"},
	} {
		s.Exec(t, change.statement)
		b.until(t, change.shown)
		if at := evaluate[string](t, b, `document.activeElement.textContent + " " + window.loaded`); at != "totals_v1 once" {
			t.Errorf("after %s the focus is on, and the page was loaded: %q", change.statement, at)
		}
		if order := evaluate[string](t, b, `[...document.querySelectorAll("tr[data-key]")].map(r => r.dataset.key).join(" ")`); order != change.order {
			t.Errorf("after %s the rows are %s", change.statement, order)
		}
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch' WHERE consumer_name = 'totals_v1'`)
	b.until(t, `document.getElementById("said")?.textContent.includes("2 paused")`)

	// Who stops the updates sees none.
	b.click(t, "#toggle")
	before := evaluate[string](t, b, `document.documentElement.dataset.updates`)
	viewer := open(t) // sees later ones
	viewer.run(t, chromedp.Navigate(s.base))
	viewer.until(t, `Number(document.documentElement.dataset.updates) >= 3`)
	if after := evaluate[string](t, b, `document.documentElement.dataset.updates`); after != before {
		t.Errorf("%s updates, %s when they were stopped", after, before)
	}
	b.expectQuiet(t)
}

// On a narrow screen, too, the first things to read are whether all is well and what is not, whole and on
// the first screen; what somebody types into the search stays when a notice comes.
func TestVerdictOnNarrowScreen(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.furnish(t, "")
	b := open(t)
	b.look(t, 320, "light")
	b.run(t, chromedp.Navigate(s.base))
	first := func() []string {
		return evaluate[[]string](t, b, `[...document.querySelectorAll("main *")].filter(e => e.checkVisibility() && e.childElementCount === 0 && e.textContent.trim() && e.closest("h1, .verdict, ul.wrong, figure, form, table"))
			.slice(0, 5).map(e => e.closest("h1, .verdict, ul.wrong, figure, form, table").className || e.tagName)`)
	}
	if got := first(); !slices.Equal(got, []string{"H1", "verdict bad", "verdict bad", "wrong", "wrong"}) {
		t.Errorf("the page begins with %q", got)
	}
	if ends := evaluate[float64](t, b, `document.querySelector("ul.wrong").getBoundingClientRect().bottom`); ends > 900 {
		t.Errorf("the alarms end %v px below the top", ends)
	}
	order := evaluate[string](t, b, `[...document.querySelectorAll("ul.wrong li")].map(e => e.className).join(" ")`)
	if !strings.HasPrefix(order, "bad ") || strings.Contains(order, "warn bad") || !strings.HasSuffix(order, " warn") {
		t.Errorf("the notices are %q", order)
	}
	b.until(t, `document.documentElement.dataset.updates`)
	b.run(t, chromedp.SendKeys(chromedp.CSS("#f-find"), "tot"))
	for _, change := range []struct{ statement, shown string }{
		{`INSERT INTO jobs_queues (name, paused_at, paused_by, paused_reason) VALUES ('slow', now(), 'ann', 'lunch')`, `document.querySelector("ul.wrong").innerText.includes("queue slow")`},
		{`UPDATE worker_nodes SET status = '{}', heartbeat_timeout = '1 day', heartbeat_at = now(); DELETE FROM consumer_checkpoints WHERE consumer_name <> 'mail_v1'; DELETE FROM consumer_dead_letters; DELETE FROM jobs_queues;
			DELETE FROM jobs; TRUNCATE jobs_flow_runs CASCADE; UPDATE jobs_workers SET status = '{}', heartbeat_timeout = '1 day', heartbeat_at = now();
			INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'mail_v1', worker_id FROM worker_nodes ON CONFLICT (consumer_name) DO UPDATE SET worker_id = excluded.worker_id`,
			`document.querySelector(".verdict").innerText.includes("Healthy: 1 consumer, 1 worker") && !document.querySelector("ul.wrong")`},
	} {
		s.Exec(t, change.statement)
		b.until(t, change.shown)
		if typed := evaluate[string](t, b, `document.activeElement.id + " " + document.querySelector("#f-find").value`); typed != "f-find tot" {
			t.Errorf("after %s the focus, and the text, are %q", change.statement, typed)
		}
	}
	if got := first(); got[0] != "H1" || got[1] != "verdict good" || slices.Contains(got, "wrong") {
		t.Errorf("of a healthy deployment the page begins with %q", got)
	}
	b.expectQuiet(t)
}

// All failed jobs of a queue are retried on a narrow screen, and the preview is accessible.
func TestManyJobsOnNarrowScreen(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.Exec(t, `INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, error)
		SELECT i, 'mail', 'slow', 5, now(), '{}', now(), 1, 1, 0, 5, 'failed', 'boom' FROM generate_series(1, 3) AS i`)
	b := open(t)
	axe := axeCore(t)
	b.look(t, 320, "light")
	b.run(t, chromedp.Navigate(s.base+"jobs?state=failed&queue=slow"))
	b.judge(t, axe, "failed jobs", 320)
	b.ask(t, "#retry form")
	b.judge(t, axe, "the preview", 320)
	if n := evaluate[int](t, b, `document.querySelectorAll(".record").length`); n != 4 {
		t.Errorf("the preview has %d records, want 3 jobs and the sum", n)
	}
	b.click(t, "button.make")
	b.until(t, `document.getElementById("said")?.textContent.startsWith("Done: retry")`)
	if n := s.count(t, `SELECT count(*) FROM jobs`); n != 3 {
		t.Errorf("%d jobs were made, want 3", n)
	}
	b.expectQuiet(t)
}

// press presses Tab until an element has the focus.
func (b *tab) press(t testing.TB, selector string) {
	t.Helper()
	for range 100 {
		if evaluate[bool](t, b, fmt.Sprintf(`document.activeElement.matches(%q)`, selector)) {
			return
		}
		b.run(t, chromedp.KeyEvent(kb.Tab))
	}
	t.Fatalf("the keyboard does not get to %s on\n%s", selector, evaluate[string](t, b, `document.body.innerHTML`))
}

// A consumer is paused with the keyboard alone, and a worker drained.
func TestPauseByKeyboard(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.furnish(t, "")
	b := open(t)
	b.run(t, chromedp.Navigate(s.base))
	b.press(t, `[data-key="totals_v1"] a`)
	b.run(t, chromedp.KeyEvent(kb.Enter))
	b.until(t, `document.querySelector("h1")?.textContent === "Consumer totals_v1" && document.readyState === "complete"`)
	b.press(t, "#pause > summary")
	b.run(t, chromedp.KeyEvent(kb.Enter))
	b.press(t, "#pause-reason")
	b.run(t, chromedp.KeyEvent("order 4711"), chromedp.KeyEvent(kb.Enter))
	b.until(t, `document.querySelector("h1")?.textContent.startsWith("Preview") && document.readyState === "complete"`)
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE consumer_name = 'totals_v1' AND paused_at IS NOT NULL`); n != 0 {
		t.Error("a preview has paused it")
	}
	b.press(t, "button.make")
	b.run(t, chromedp.KeyEvent(kb.Enter))
	b.until(t, `document.getElementById("said")?.textContent.startsWith("Done: pause")`)
	if n := s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE consumer_name = 'totals_v1' AND paused_by = 'ann' AND paused_reason = 'order 4711'`); n != 1 {
		t.Error("it is not paused")
	}
	for page, table := range map[string]string{"workers": "worker_nodes", "jobworkers": "jobs_workers"} {
		b.run(t, chromedp.Navigate(s.base+page))
		b.press(t, "#drain-reason")
		b.run(t, chromedp.KeyEvent("the node goes"), chromedp.KeyEvent(kb.Enter))
		b.until(t, `document.querySelector("h1")?.textContent.includes(": drain ") && document.readyState === "complete"`)
		b.press(t, "button.make")
		b.run(t, chromedp.KeyEvent(kb.Enter))
		b.until(t, `document.getElementById("said")?.textContent.startsWith("Done: drain") && !document.querySelector("#drain-reason")`)
		if n := s.count(t, `SELECT count(*) FROM `+table+` WHERE drain_requested_at IS NULL`); n != 0 {
			t.Errorf("%d of %s are not asked to drain", n, table)
		}
	}
	b.expectQuiet(t)
}

// A change is made without JavaScript.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.furnish(t, "")
	b := open(t)
	command(t, b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.run(t, chromedp.Navigate(s.base+"letters?consumer=totals_v1"))
	b.preview(t, "#discard", "of no use")
	b.click(t, "button.make")
	b.until(t, `document.querySelector("#f-consumer")`)
	if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters`); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
	b.expectQuiet(t)
}

// Texts from the tables stay texts, also in what the script puts into the page.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	pages := s.furnish(t, `</script><script>alert(1)</script>"'><img src=nowhere onerror=alert(2)><style>*{color:red}</style>`)
	b := open(t)
	for _, page := range pages {
		b.run(t, chromedp.Navigate(s.base+page))
		if evaluate[bool](t, b, `document.querySelector("[data-live]") !== null`) {
			b.until(t, `document.documentElement.dataset.updates`)
		}
		if n := evaluate[int](t, b, `document.querySelectorAll("img, style, script:not([src])").length`); n != 0 {
			t.Errorf("%q: %d elements come from a text", page, n)
		}
	}
	b.expectQuiet(t, "404")
}

// The server restarts, and for a while something else answers in its place. The page goes on
// by itself.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.furnish(t, "")
	serve := func(address string, h http.Handler) *httptest.Server {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: h}}
		server.Start()
		t.Cleanup(server.Close)
		return server
	}
	before := newConsole(s.Database)
	first := serve("127.0.0.1:0", before)
	b := open(t)
	b.run(t, chromedp.Navigate(first.URL+"/"))
	b.until(t, `document.documentElement.dataset.updates`)
	evaluate[any](t, b, `window.loaded = "once"; null`)
	before.Close()
	first.Close()
	b.until(t, `document.getElementById("said").textContent.includes("is lost")`)

	var turnedAway atomic.Int64
	proxy := serve(first.Listener.Addr().String(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		turnedAway.Add(1)
		w.WriteHeader(http.StatusBadGateway)
	}))
	for deadline := time.Now().Add(patience); turnedAway.Load() < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the page has asked %d times", turnedAway.Load())
		}
	}
	proxy.Close()

	s.Exec(t, `UPDATE consumer_checkpoints SET last_position = 77 WHERE consumer_name = 'totals_v1'`)
	after := newConsole(s.Database)
	defer after.Close()
	serve(first.Listener.Addr().String(), after)
	b.until(t, `document.querySelector('[data-key="totals_v1"]').innerText.includes("77")`)
	if said := evaluate[string](t, b, `document.getElementById("said").textContent + window.loaded`); !strings.HasPrefix(said, "It answers again.") || !strings.HasSuffix(said, "once") {
		t.Error(said)
	}
	b.expectQuiet(t, "502", "ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE")
}

// A page says that the database is away, instead of the old state, and goes on when
// it is back.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.furnish(t, "")
	b := open(t)
	b.run(t, chromedp.Navigate(s.base))
	b.until(t, `document.documentElement.dataset.updates`)
	s.Exec(t, `ALTER TABLE consumer_checkpoints RENAME TO gone`)
	b.until(t, `document.getElementById("said").textContent.startsWith("No update: ") && document.getElementById("when").textContent.startsWith("No update: ")`)
	s.Exec(t, `ALTER TABLE gone RENAME TO consumer_checkpoints`)
	b.until(t, `document.getElementById("said").textContent.startsWith("It answers again.") && document.getElementById("when").textContent.startsWith("Updated ")`)
	b.expectQuiet(t)
}

// A page in the background has no updates.
func TestBackground(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.furnish(t, "")
	b, viewer := open(t), open(t)
	b.run(t, chromedp.Navigate(s.base))
	b.until(t, `document.documentElement.dataset.updates`)
	hide := func(hidden bool) {
		evaluate[any](t, b, fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true}); document.dispatchEvent(new Event("visibilitychange")); null`, hidden))
	}
	hide(true)
	before := evaluate[string](t, b, `document.documentElement.dataset.updates`)
	viewer.run(t, chromedp.Navigate(s.base))
	viewer.until(t, `Number(document.documentElement.dataset.updates) >= 3`)
	if after := evaluate[string](t, b, `document.documentElement.dataset.updates`); after != before {
		t.Errorf("%s updates, %s when nobody looked any more", after, before)
	}
	hide(false)
	b.until(t, `Number(document.documentElement.dataset.updates) > `+before)
	b.expectQuiet(t)
}

// Two operators confirm the same change. One of them is told that the other was faster.
func TestOperatorsRace(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.furnish(t, "")
	tabs := []*tab{open(t), open(t)}
	for _, b := range tabs {
		b.run(t, chromedp.Navigate(s.base+"consumer?name=stopped_v1"))
		b.ask(t, "#resume form")
	}
	var group sync.WaitGroup
	for _, b := range tabs {
		group.Go(func() { b.click(t, "button.make") })
	}
	group.Wait()
	var titles []string
	for _, b := range tabs {
		b.until(t, `!document.querySelector("button.make") && document.readyState === "complete"`)
		titles = append(titles, evaluate[string](t, b, `document.querySelector("h1").textContent`))
	}
	slices.Sort(titles)
	if !slices.Equal(titles, []string{"Conflict", "Consumer stopped_v1"}) {
		t.Errorf("%q", titles)
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_operations WHERE operation = 'resume'`); n != 1 {
		t.Errorf("%d operations, want 1", n)
	}
}

// Among 10,000 dead letters an operator leafs, filters, and discards all that match.
func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSite(t, "/a/b")
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ('c', 10000)`)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'c', i, 'Order', i::text, gen_random_uuid(), 'Happened', CASE WHEN i % 10 = 0 THEN 'no address' ELSE 'no customer' END, 1 FROM generate_series(1, 10000) AS i`)
	b := open(t)
	arrive := func(first string) {
		b.until(t, `document.readyState === "complete" && document.querySelector("tbody th")?.innerText === "`+first+`"`)
	}
	b.run(t, chromedp.Navigate(s.base+"letters"))
	b.click(t, "tbody a")
	arrive("1")
	b.click(t, `a[rel="next"]`)
	arrive("51")
	b.run(t, chromedp.SetValue(chromedp.CSS("#f-error"), "no address"))
	b.click(t, ".filter button")
	arrive("10")
	b.click(t, `a[rel="next"]`)
	arrive("510")
	b.preview(t, "#discard", "of no use")
	if shown := evaluate[string](t, b, `document.querySelector(".record").innerText`); !strings.Contains(shown, "1000") || !strings.Contains(shown, "(1,000 in all)") {
		t.Errorf("the preview: %s", shown)
	}
	b.click(t, "button.make")
	b.until(t, `document.querySelector("#f-error")`)
	if n := s.count(t, `SELECT count(*) FROM consumer_dead_letters`); n != 9_000 {
		t.Errorf("%d dead letters are left, want 9,000", n)
	}
	b.expectQuiet(t)
}

// A page of another site cannot send a form.
func TestForeignForm(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	s.furnish(t, "")
	before := s.count(t, `SELECT count(*) FROM consumer_operations`)
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<!DOCTYPE html><form method="post" action="%schange"><input name="step" value="make"><input name="on" value="consumer"><input name="kind" value="pause">
			<input name="name" value="totals_v1"><input name="revision" value="0"><input name="reason" value="evil"><button>win</button></form>`, s.base)
	}))
	defer foreign.Close()
	b := open(t)
	for _, host := range []string{foreign.URL, strings.Replace(foreign.URL, "127.0.0.1", "localhost", 1)} {
		b.run(t, chromedp.Navigate(host))
		b.click(t, "button")
		b.until(t, `document.readyState === "complete" && document.querySelector("h1")`)
		if said := evaluate[string](t, b, `document.querySelector("main").innerText`); !strings.Contains(said, "Another site") {
			t.Error(said)
		}
	}
	if n := s.count(t, `SELECT count(*) FROM consumer_operations`); n != before {
		t.Errorf("%d operations, want %d", n, before)
	}
}
