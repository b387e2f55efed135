package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/lab/embedded"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/subprocess"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/ops/console"
)

// breakage is one thing that goes wrong in a deployment of several processes.
type breakage struct {
	name string
	// says has what each source must say within a minute, as a regular expression. One that is not
	// there must find all well meanwhile; unless is then why it need not say it.
	says   map[source]string
	unless map[source]string
	happen func(t *testing.T, s *shop)
	remedy string // a regular expression for what some source prints
	mend   func(t *testing.T, s *shop)
}

// source is one whom an operator asks.
type source string

const (
	byStatus  source = "status"
	byDoctor  source = "doctor"
	byConsole source = "console"
	byProbes  source = "probes"
	byAlerts  source = "alerts"
)

var allVoices = []source{byStatus, byDoctor, byConsole, byProbes, byAlerts}

// answer is what a source says.
type answer struct {
	well bool
	text string
}

// In a deployment that is broken on purpose, none of the sources says that all is well while others
// name what is wrong, and the remedies that they print work.
func TestBreakages(t *testing.T) {
	tier.Long(t, "TestRunbook makes each alarm true with one worker, without processes, metrics and several builds")
	s := openShop(t)
	s.await(t, "the deployment to be healthy", s.healthy)
	only := os.Getenv("BREAKAGE")
	for _, b := range slices.Concat(breakagesOfDeployment, breakagesOfConsumers, breakagesOfJobs) {
		if only != "" && !regexp.MustCompile(only).MatchString(b.name) {
			continue
		}
		if !t.Run(b.name, func(t *testing.T) { s.play(t, b) }) && s.stuck {
			break
		}
	}
	t.Logf("what the sources say, and after how long:\n%s", s.table.String())
}

// play breaks the deployment, asks all sources, mends it, and waits until it is healthy.
func (s *shop) play(t *testing.T, b breakage) {
	began := time.Now()
	s.before = s.scrape()
	b.happen(t, s)
	took, last := map[source]time.Duration{}, map[source]answer{}
	// Polled, as by an operator: nothing announces what status, doctor and probes say.
	for deadline := time.Now().Add(time.Minute); len(took) < len(b.says) && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		for _, v := range allVoices {
			want, speaks := b.says[v]
			if last[v] = s.ask(v); !speaks || took[v] > 0 {
				continue
			}
			if !last[v].well && regexp.MustCompile(want).MatchString(last[v].text) {
				took[v] = time.Since(began)
			}
		}
	}
	fmt.Fprintf(&s.table, "\n%s\n", b.name)
	for _, v := range allVoices {
		s.judge(t, b, v, last[v], took[v])
	}
	if !slices.ContainsFunc(allVoices, func(v source) bool { return regexp.MustCompile(b.remedy).MatchString(last[v].text) }) {
		t.Errorf("no source prints the remedy %q", b.remedy)
	}
	if t.Failed() {
		for _, v := range allVoices {
			t.Logf("%s, well %v:\n%s", v, last[v].well, last[v].text)
		}
	}
	began = time.Now()
	b.mend(t, s)
	if !s.await(t, "all sources to find nothing wrong after the remedy", s.healthy) {
		s.stuck = true
		fmt.Fprintf(&s.table, "  %-8s %s: DID NOT WORK\n", "remedy", b.remedy)
		t.FailNow()
	}
	fmt.Fprintf(&s.table, "  %-8s %s: worked, all well after %.1fs\n", "remedy", b.remedy, time.Since(began).Seconds())
}

// judge writes into the table what a source has said, and fails if it contradicts the others.
func (s *shop) judge(t *testing.T, b breakage, v source, last answer, took time.Duration) {
	want, speaks := b.says[v]
	switch {
	case speaks && took == 0:
		t.Errorf("within a minute %s does not say %q", v, want)
		fmt.Fprintf(&s.table, "  %-8s DOES NOT SAY %q\n", v, want)
	case speaks:
		said := regexp.MustCompile(`(?m)^.*(?:` + want + `).*$`).FindString(last.text)
		if said == "" {
			said = want
		}
		fmt.Fprintf(&s.table, "  %-8s %4.1fs %s\n", v, took.Seconds(), cut(strings.Join(strings.Fields(said), " "), 150))
	case b.unless[v] == "":
		t.Errorf("%s says nothing, and no reason is given", v)
	case !last.well:
		t.Errorf("%s is to find nothing wrong, and says:\n%s", v, last.text)
		fmt.Fprintf(&s.table, "  %-8s IS NOT WELL\n", v)
	default:
		fmt.Fprintf(&s.table, "  %-8s    – well: %s\n", v, b.unless[v])
	}
}

// await waits for a condition, and says what all sources say if it does not come.
func (s *shop) await(t *testing.T, what string, done func() bool) bool {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if done() {
			return true
		}
	}
	t.Errorf("waited in vain for: %s", what)
	for _, v := range allVoices {
		a := s.ask(v)
		t.Logf("%s, well %v:\n%s", v, a.well, a.text)
	}
	return false
}

func (s *shop) healthy() bool {
	s.before = nil
	return !slices.ContainsFunc(allVoices, func(v source) bool { return !s.ask(v).well })
}

// shop is a deployment: two workers of events, two of jobs, and who operates it.
type shop struct {
	site    // of the owner, a superuser
	tools   site
	server  *embedded.Server
	console *console.Console
	as      string // connection string of the workers' role
	pods    map[string]*pod
	builds  map[string]build
	before  []exposed // metrics before the breakage; nil: no counter has risen
	table   strings.Builder
	stuck   bool
}

// pod is a process of the deployment.
type pod struct {
	*subprocess.Process
	out     pgtest.Lines
	address string
}

const (
	logged   = 200_000 // events
	enqueued = 50_000  // jobs, of which most have completed
)

var podNames = []string{"events-1", "events-2", "jobs-1", "jobs-2"}

func openShop(t *testing.T) *shop {
	s := &shop{pods: map[string]*pod{}, server: pgtest.OwnServer(t, map[string]string{"max_connections": "120"})}
	d := &pgtest.Database{URL: s.server.URL("postgres")}
	var err error
	if d.DB, err = sql.Open("pgx", d.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.DB.Close() })
	s.site = at(d)
	s.expect(t, exitDone, words("migrate up"))
	s.expect(t, exitDone, words("migrate up --jobs"))
	s.Exec(t, `CREATE ROLE shop LOGIN PASSWORD 'r'; CREATE ROLE ops LOGIN PASSWORD 'r'; GRANT pg_read_all_stats, pg_signal_backend TO ops`)
	s.grant(t)
	s.fill(t)
	s.as = s.site.as("shop", "r")
	s.tools = site{d, map[string]string{"DATABASE_URL": s.site.as("ops", "r"), "PGFRONTIER_OPERATOR": "ann"}}
	db, err := sql.Open("pgx", s.tools.env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s.console = console.New(db, console.Options{})
	t.Cleanup(s.console.Close)
	s.builds = s.healthyBuilds()
	t.Cleanup(func() {
		for _, p := range s.pods {
			p.Kill()
		}
		probing.CloseIdleConnections()
	})
	for _, name := range podNames {
		s.start(t, name)
	}
	return s
}

// grant gives the workers and the operator what their roles need.
func (s *shop) grant(t *testing.T) {
	for _, line := range []string{"migrate grants --worker shop --writer shop --operator ops --reader ", "migrate grants --jobs --worker shop --client shop --operator ops --reader ", "migrate grants --worker ops --writer  --operator  --reader ", "migrate grants --jobs --worker ops --client  --operator  --reader "} {
		s.Exec(t, s.expect(t, exitDone, strings.Split(line, " ")).out)
	}
}

// fill makes a log and a history of jobs.
func (s *shop) fill(t *testing.T) {
	s.Exec(t, fmt.Sprintf(`INSERT INTO events (aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
		SELECT 'Order', 'order ' || i / 10, i %% 10 + 1, gen_random_uuid(), 'OrderPlaced', '{}' FROM generate_series(1, %d) AS i`, logged))
	s.Exec(t, fmt.Sprintf(`INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_attempts, max_resets, state)
		SELECT -i, 'errand', (ARRAY['mail', 'reports', 'bulk'])[1 + i %% 3], 5, now(), '{}', now(), 1, 0, 0, 15, 5, 'completed' FROM generate_series(1, %d) AS i`, enqueued*9/10))
	s.Exec(t, fmt.Sprintf(`INSERT INTO jobs (kind, queue, run_at, args) SELECT 'errand', (ARRAY['mail', 'reports', 'bulk'])[1 + i %% 3], now() + CASE WHEN i %% 10 = 0 THEN interval '0' ELSE interval '1 day' END, '{}' FROM generate_series(1, %d) AS i`, enqueued/10))
	s.Exec(t, `ANALYZE`)
}

func (s *shop) healthyBuilds() map[string]build {
	events := build{URL: s.as, Consumers: []string{"orders", "invoices", "mailer", "search", "totals", "fraud", "loyalty", partitioned}, Types: map[string][]string{"mailer": {"Order"}}, Policy: worker.FailDeadLetter}
	ofJobs := build{URL: s.as, Queues: []string{"mail", "reports", "bulk"}, Schedules: []string{"nightly", "digest"}, Advances: true}
	return map[string]build{"events-1": events, "events-2": events, "jobs-1": ofJobs, "jobs-2": ofJobs}
}

// start starts a process of its build.
func (s *shop) start(t *testing.T, name string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s.builds[name])
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), asDeployed+"="+string(text))
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if p.Process, err = subprocess.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	s.pods[name] = p
	await(t, name+" to serve", func() bool {
		found := regexp.MustCompile(`(?m)^serves (\S+)$`).FindStringSubmatch(p.out.String())
		if found != nil {
			p.address = found[1]
		}
		return found != nil || !p.Running()
	})
}

// deploy starts processes again, by default all, with builds that change makes of the healthy ones.
func (s *shop) deploy(t *testing.T, change func(b *build), names ...string) {
	t.Helper()
	if names == nil {
		names = podNames
	}
	for _, name := range names {
		b := s.healthyBuilds()[name]
		if change != nil {
			change(&b)
		}
		s.builds[name] = b
		s.end(t, name, syscall.SIGTERM)
		s.start(t, name)
	}
}

// end ends a process by a signal.
func (s *shop) end(t *testing.T, name string, by syscall.Signal) {
	t.Helper()
	p := s.pods[name]
	_ = p.Signal(by) // or it has ended
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Errorf("%s does not end. It has printed:\n%s", name, &p.out)
		p.Kill()
	}
}

var probing = http.Client{Timeout: 2 * time.Second}

// get asks a process; ok reports whether it has answered.
func (s *shop) get(name, path string) (body string, status int, ok bool) {
	p := s.pods[name]
	if p.address == "" {
		return "", 0, false
	}
	r, err := probing.Get("http://" + p.address + path)
	if err != nil {
		return "", 0, false
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), r.StatusCode, err == nil
}

// do runs a command that a remedy names.
func (s *shop) do(t *testing.T, line string) {
	t.Helper()
	s.tools.expect(t, exitDone, split(t, line)[1:])
}

func (s *shop) ask(v source) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch v {
	case byStatus:
		return s.askStatus(ctx)
	case byDoctor:
		got := s.tools.within(ctx, place{}, "doctor", "--max-age", deployedLate.String())
		lines := slices.DeleteFunc(strings.Split(got.out+got.talk, "\n"), func(l string) bool { return strings.HasPrefix(l, levelOK) })
		return answer{got.code == exitDone && !strings.Contains(got.out, levelWarn), strings.Join(lines, "\n")}
	case byConsole:
		text, ok := answerOf(s.console, "/")
		_, text, _ = strings.Cut(text, "<main")
		text, _, _ = strings.Cut(text, "<figure>")
		var lines []string
		for _, line := range strings.Split(html.UnescapeString(tags.ReplaceAllString("<"+strings.ReplaceAll(text, "</li>", "\n"), " ")), "\n") {
			if line = strings.Join(strings.Fields(line), " "); line != "" && line != "Overview" {
				lines = append(lines, line)
			}
		}
		return answer{ok && len(lines) == 1 && strings.HasPrefix(lines[0], "✓ Healthy"), strings.Join(lines, "\n")}
	case byProbes:
		return s.askProbes()
	}
	return s.askAlerts()
}

// askStatus finds all well if nothing is wrong, and all consumers run without dead letters.
func (s *shop) askStatus(ctx context.Context) answer {
	got := s.tools.within(ctx, place{}, "status")
	if got.code != exitDone {
		return answer{false, got.out + got.talk}
	}
	facts, table, _ := strings.Cut(got.out, "\n\n")
	var wrong []string
	for _, line := range strings.Split(facts, "\n") {
		if !regexp.MustCompile(`^(log +head|workers +2, led by)`).MatchString(line) {
			wrong = append(wrong, line)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[1:] {
		if !regexp.MustCompile(` runs +0 `).MatchString(line) {
			wrong = append(wrong, line)
		}
	}
	return answer{len(wrong) == 0, strings.Join(wrong, "\n")}
}

func (s *shop) askProbes() answer {
	var all []string
	for _, name := range podNames {
		for _, path := range []string{"/livez", "/readyz"} {
			switch body, status, ok := s.get(name, path); {
			case !ok:
				all = append(all, name+" "+path+": no answer")
			case status != http.StatusOK:
				all = append(all, name+" "+path+": "+strings.TrimSpace(body))
			}
		}
	}
	return answer{len(all) == 0, strings.Join(all, "\n")}
}

// exposed is a value that a process exposes.
type exposed struct {
	series
	pod string
}

// scrape asks all processes for their metrics. One that does not answer has none.
func (s *shop) scrape() (all []exposed) {
	for _, name := range podNames {
		body, _, ok := s.get(name, "/metrics")
		var of []series
		if !ok || json.Unmarshal([]byte(body), &of) != nil {
			continue
		}
		for _, one := range of {
			all = append(all, exposed{one, name})
		}
	}
	return all
}

func (s *shop) askAlerts() answer {
	now := s.scrape()
	before := s.before
	if before == nil {
		before = now
	}
	names := map[string]bool{}
	for _, r := range rules {
		for _, about := range r.holds(now, before) {
			names[strings.TrimSpace(strings.TrimPrefix(r.alert, "Pgfrontier")+" "+about)] = true
		}
	}
	return answer{len(names) == 0, strings.Join(slices.Sorted(maps.Keys(names)), "\n")}
}
