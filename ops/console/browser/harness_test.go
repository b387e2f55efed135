// Package browser tests the console in a real browser.
package browser

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/testdeps"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/jobs/flow"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops/console"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = pgtest.Patience

// turns bounds the tests at a time: a browser that starts keeps a core busy, and a page must answer
// within the console's limit.
var turns = make(chan struct{}, 4)

// site is a database with all tables, and a console below a path.
type site struct {
	*pgtest.Database
	base string // ends with a slash
}

func newSite(t testing.TB, prefix string) *site {
	t.Helper()
	turns <- struct{}{}
	t.Cleanup(func() { <-turns })
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	c := newConsole(d)
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, c))
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		c.Close()
		server.Close()
	})
	return &site{d, server.URL + prefix + "/"}
}

// newConsole is one in which everybody may do everything.
func newConsole(d *pgtest.Database) *console.Console {
	return console.New(d.DB, console.Options{Access: func(*http.Request) console.Grant {
		return console.Grant{Operator: "ann", Level: console.Operate}
	}})
}

func (s *site) count(t testing.TB, query string) (n int64) {
	t.Helper()
	if err := s.DB.QueryRow(query).Scan(&n); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
	return n
}

type mail struct{}

func (mail) Kind() string { return "mail" }

// furnish puts something on every page. text is what all texts have in them.
func (s *site) furnish(t testing.TB, text string) (pages []string) {
	t.Helper()
	s.Exec(t, `INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT i, 'Order', i || $1::text, 1, gen_random_uuid(), 'Happened' || $1::text, convert_to('{"total": 7}' || $1::text, 'UTF8') FROM generate_series(1, 100) AS i`, text)
	s.Exec(t, `SELECT setval('events_global_position_seq', 100)`)
	for name, position := range map[string]int{"totals_v1": 60, "mail_v1": 100, "shipping_v1": 3} {
		s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ($1, $2)`, name, position)
	}
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, paused_at, paused_by, paused_reason) VALUES ('stopped_v1', 5, now(), 'bob', 'lunch' || $1::text)`, text)
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT 'totals_v1', global_position, aggregate_type, aggregate_id, event_id, event_type, 'no customer' || $1::text, 1 FROM events WHERE global_position <= 55`, text)
	s.Exec(t, `INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position)
		VALUES ('mail_v1', gen_random_uuid(), 90, 93, 4, 'open', 94, 94)`)
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, build, status)
		VALUES (gen_random_uuid(), '{totals_v1,mail_v1}', 'host7', 4242, 'v1.2.3', jsonb_build_object('Safe', 95, 'Leader', true, 'FrontierError', 'lost' || $1::text))`, text)
	s.Exec(t, `INSERT INTO jobs_workers (worker_id, kinds, hostname, pid, build, status, drain_requested_at)
		VALUES (gen_random_uuid(), '{mail}', 'host8', 4243, 'v1.2.3', jsonb_build_object('LoopError', 'lost' || $1::text), now()), (gen_random_uuid(), '{mail}', 'host8', 4244, 'v1.2.3', NULL, NULL)`, text)
	for _, of := range []string{"consumer", "jobs"} {
		s.Exec(t, `INSERT INTO `+of+`_past_workers (worker_id, stopped_at, how, hostname, pid, build) SELECT gen_random_uuid(), now(), how, 'host9', 4245, 'v1.2.3' || $1::text FROM unnest('{stopped,failed,drained,dead}'::text[]) AS how`, text)
	}
	s.Exec(t, `INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason) VALUES ('totals_v1', 'pause', jsonb_build_object('position', 3, 'note', $1::text), 'bob', 'lunch' || $1::text)`, text)
	s.Exec(t, `INSERT INTO jobs (kind, queue, args) SELECT 'mail', 'slow', jsonb_build_object('to', $1::text) FROM generate_series(1, 60)`, text)
	s.Exec(t, `INSERT INTO jobs_schedules (name, hash, next_at) VALUES ('nightly', 'h', clock_timestamp())`)
	order := flow.New[int]("order")
	charge := flow.Add[flow.None](order, "charge", func(int) mail { return mail{} })
	flow.Add[flow.None](order, "ship", func(int) mail { return mail{} }, flow.After(charge))
	run, err := order.Start(t.Context(), flow.NewClient(jobs.NewClient(s.DB)), nil, 7)
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `UPDATE jobs_flow_steps SET state = 'failed', error = 'no such card' || $1::text, finished_at = now() WHERE name = 'charge'`, text)
	return []string{"", "consumer?name=totals_v1", "consumer?name=stopped_v1", "letters", "letters?consumer=totals_v1", "letter?consumer=totals_v1&position=1", "workers", "blocked", "gaps?consumer=mail_v1",
		"event?position=1", "plan", "operations", "queues", "jobworkers", "jobs", fmt.Sprint("job?id=", s.count(t, `SELECT min(id) FROM jobs`)), "schedules", "flows", fmt.Sprint("flow?id=", run.Run), "nowhere"}
}

// tab is a tab of a browser. It keeps what the browser complains of.
type tab struct {
	context.Context
	mu         sync.Mutex
	complaints []string
}

func open(t testing.TB) *tab {
	t.Helper()
	browser, err := testdeps.Find(t.Context(), "Chromium", "install it (apt-get install chromium) or put it in PATH", "chromium")
	testdeps.Skip(t, err)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "c") // not t.TempDir: the path of Chromium's socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.UserDataDir(folder),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-breakpad", true), chromedp.WSURLReadTimeout(patience),
		chromedp.Env("HOME="+folder, "TMPDIR="+folder, "XDG_CONFIG_HOME="+folder, "XDG_CACHE_HOME="+folder))
	limited, cancelLimit := context.WithTimeout(context.Background(), 15*time.Minute) // one test reads 64 pages
	allocator, cancelAllocator := chromedp.NewExecAllocator(limited, options...)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // ends the browser and waits for it
		cancel()
		cancelAllocator()
		cancelLimit()
	})
	b := &tab{Context: ctx}
	if err := chromedp.Do(ctx); err != nil { // starts the browser, which lives as long as ctx
		t.Fatal(err)
	}
	err = chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *cdplog.EventEntryAdded:
			b.complain(string(e.Entry.Level) + ": " + e.Entry.Text)
		case *runtime.EventExceptionThrown:
			b.complain("exception: " + e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			b.complain("console: " + string(e.Type))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	command(t, b, cdplog.Enable, cdp.Empty{})
	return b
}

func (b *tab) complain(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = append(b.complaints, text)
}

// expectQuiet fails the test if the browser complained, of the policy for one.
func (b *tab) expectQuiet(t testing.TB, but ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.complaints {
		if !slices.ContainsFunc(but, func(known string) bool { return strings.Contains(c, known) }) {
			t.Errorf("the browser: %s", c)
		}
	}
}

func (b *tab) run(t testing.TB, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// command sends one of the browser's own commands.
func command[P, R any](t testing.TB, b *tab, c cdp.Command[P, R], params P) R {
	t.Helper()
	ctx, cancel := context.WithTimeout(b, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, c, params)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// evaluate runs a script and returns its value. A promise is awaited.
func evaluate[T any](t testing.TB, b *tab, script string) T {
	t.Helper()
	value, err := try[T](b, script)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func try[T any](b *tab, script string) (T, error) {
	ctx, cancel := context.WithTimeout(b, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// until waits for an expression to be true. While the page changes, it has no value.
func (b *tab) until(t testing.TB, expression string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		is, err := try[bool](b, `Boolean(`+expression+`)`)
		if is && err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s (%v) on\n%s", expression, err, evaluate[string](t, b, `document.documentElement.outerHTML`))
		}
	}
}

// click clicks on an element, once the page that has it is loaded: until then the browser
// may forget the elements which it has named.
func (b *tab) click(t testing.TB, selector string) {
	t.Helper()
	b.until(t, fmt.Sprintf(`document.readyState === "complete" && document.querySelector(%q)`, selector))
	b.run(t, chromedp.Click(chromedp.CSS(selector)))
}

// preview opens a change's form, gives a reason, and asks what the change would do.
func (b *tab) preview(t testing.TB, form, reason string) {
	t.Helper()
	b.click(t, form+" > summary")
	b.run(t, chromedp.SendKeys(chromedp.CSS(form+` input[name="reason"]`), reason))
	b.click(t, form+" button")
	b.until(t, `document.querySelector("button.make")`)
}

// ask fills in a form and sends it.
func (b *tab) ask(t testing.TB, form string) {
	t.Helper()
	evaluate[any](t, b, fmt.Sprintf(`(() => {
		const form = document.querySelector(%q);
		for (const field of form.querySelectorAll("input[required]")) field.value = "1";
		form.requestSubmit();
	})()`, form))
	b.until(t, `!document.querySelector("`+form+`") && document.readyState === "complete"`)
}

// look sets the width of the window and the theme.
func (b *tab) look(t testing.TB, width int64, theme string) {
	t.Helper()
	command(t, b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1})
	command(t, b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
}
