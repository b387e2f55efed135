package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/health"
	"github.com/pgfrontier/worker/ops/console"
	"github.com/pgfrontier/worker/store/consumer"
)

// alarm is how a section of docs/runbook.md comes true. The section itself says what each
// source answers then, and which commands mend it.
type alarm struct {
	name   string
	age    time.Duration                          // how late is late; 0: five minutes
	start  func(t *testing.T, s *scene)           // a deployment in good health; nil: a worker with the consumer "c"
	happen func(t *testing.T, s *scene)           // what is wrong from now on
	mend   func(t *testing.T, s *scene, r remedy) // nil: the section's commands, no more
}

// remedy runs the commands of a section.
type remedy func()

// The runbook says what all sources answer, and its remedies work.
func TestRunbook(t *testing.T) {
	t.Parallel()
	sections := runbook(t)
	alarms := slices.Concat(logAlarms, consumerAlarms, deploymentAlarms, jobsAlarms)
	names := map[string]bool{}
	for _, a := range alarms {
		names[a.name] = true
		if _, ok := sections[a.name]; !ok {
			t.Errorf("docs/runbook.md has no section %q", a.name)
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			a.play(t, sections[a.name])
		})
	}
	for name := range sections {
		if !names[name] {
			t.Errorf("no test makes %q of docs/runbook.md true", name)
		}
	}
}

// play makes an alarm true, listens to all sources, mends it and listens again.
func (a alarm) play(t *testing.T, text string) {
	s := &scene{age: a.age, vars: map[string]string{"NAME": "c"}, told: map[string]bool{}}
	if s.age == 0 {
		s.age = 5 * time.Minute
	}
	start := a.start
	if start == nil {
		start = func(t *testing.T, s *scene) { s.work(t, counter{}) }
	}
	start(t, s)
	if s.Database == nil {
		t.Fatal("the start has made no database")
	}
	s.healthy(t, read(t, s.fill(text)))
	a.happen(t, s)
	now := read(t, s.fill(text))
	for _, r := range now.rows {
		if len(r.says) > 0 {
			s.says(t, r)
		}
	}
	for _, r := range now.rows {
		if len(r.says) == 0 {
			s.quiet(t, r.source)
		}
	}
	for _, line := range now.look {
		s.expect(t, exitDone, split(t, line)[1:])
	}
	mend := func() {
		for _, c := range now.mend {
			s.do(t, c)
		}
	}
	if a.mend != nil {
		a.mend(t, s, mend)
	} else {
		mend()
	}
	s.healthy(t, now)
}

// scene is a deployment, and the worker of it whose probes are asked.
type scene struct {
	site
	age    time.Duration
	worker health.Worker
	end    func() error      // stops the worker, and returns what its Start has returned
	vars   map[string]string // what the document's words in capitals stand for

	mu   sync.Mutex
	told map[string]bool // events
}

// build makes the site, unless there is one.
func (s *scene) build(t *testing.T) {
	t.Helper()
	if s.Database != nil {
		return
	}
	s.site = newSite(t)
	if err := migrations.ApplyJobs(t.Context(), s.DB, nil); err != nil {
		t.Fatal(err)
	}
}

// work runs a worker with one consumer, whose probes are asked from now on.
func (s *scene) work(t *testing.T, c consumer.Consumer, opts ...worker.Option) {
	t.Helper()
	s.workAll(t, []consumer.Consumer{c}, opts...)
}

func (s *scene) workAll(t *testing.T, all []consumer.Consumer, opts ...worker.Option) {
	t.Helper()
	s.build(t)
	w := worker.New(s.DB, newStore(), all, append([]worker.Option{
		worker.WithPollInterval(5 * time.Millisecond), worker.WithMaxPollInterval(20 * time.Millisecond),
		worker.WithHeartbeatInterval(100 * time.Millisecond), worker.WithHeartbeatTimeout(10 * time.Second),
		worker.WithObserver(s.observer),
	}, opts...)...)
	s.serve(t, w, w.Start, w.Stop)
}

// serve runs a worker until the test ends.
func (s *scene) serve(t *testing.T, w health.Worker, start func(context.Context) error, stop func()) {
	t.Helper()
	s.worker = w
	done := make(chan error, 1)
	go func() { done <- start(context.Background()) }()
	end := sync.OnceValue(func() error {
		stop()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("waited in vain for the worker to stop")
		}
	})
	unasked := true
	s.end = func() error {
		unasked = false
		return end()
	}
	t.Cleanup(func() {
		if err := end(); err != nil && unasked {
			t.Errorf("the worker ended with: %v", err)
		}
	})
}

// observer records which events are reported.
func (s *scene) observer(e observe.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[reflect.TypeOf(e).Name()] = true
}

// do runs a command of the document: of the shell, whose output may go to psql, or SQL.
func (s *scene) do(t *testing.T, command string) {
	t.Helper()
	if !strings.HasPrefix(command, "pgfrontier ") {
		s.Exec(t, command)
		return
	}
	out := s.expect(t, exitDone, split(t, command)[1:]).out
	if strings.HasSuffix(command, "| psql") {
		s.Exec(t, out)
	}
}

// fill replaces the document's words in capitals.
func (s *scene) fill(text string) string {
	for word, value := range s.vars {
		text = regexp.MustCompile(`\b`+word+`\b`).ReplaceAllLiteralString(text, value)
	}
	return text
}

// ask asks a source. well reports whether it finds nothing wrong, where it judges.
func (s *scene) ask(t *testing.T, source string) (answer string, well bool) {
	t.Helper()
	page, isPage := strings.CutPrefix(source, "console ")
	switch {
	case source == "doctor":
		got := s.run(t, "doctor", "--max-age", s.age.String())
		return got.out + got.talk, got.code == exitDone && !strings.Contains(got.out, levelWarn)
	case source == "status --check":
		got := s.run(t, "status", "--check", "--max-age", s.age.String())
		return got.out + got.talk, got.code == exitDone
	case source == "status":
		got := s.run(t, "status")
		return got.out + got.talk, got.code == exitDone
	case source == "/readyz":
		return answerOf(health.Ready(s.worker, s.age), source)
	case source == "/livez":
		return answerOf(health.Live(s.worker), source)
	case isPage:
		c := console.New(s.DB, console.Options{})
		defer c.Close()
		text, well := answerOf(c, page)
		return html.UnescapeString(tags.ReplaceAllString(text, " ")), well
	case source == "event":
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Join(slices.Sorted(maps.Keys(s.told)), " "), true
	}
	t.Fatalf("docs/runbook.md has the source %q, which is none", source)
	return "", false
}

var tags = regexp.MustCompile(`<[^>]*>`)

func answerOf(h http.Handler, path string) (string, bool) {
	r := httptest.NewRecorder()
	h.ServeHTTP(r, httptest.NewRequest(http.MethodGet, path, nil))
	return r.Body.String(), r.Code == http.StatusOK
}

// says waits until a source says all that the document claims.
func (s *scene) says(t *testing.T, r row) {
	t.Helper()
	s.hear(t, r.source, fmt.Sprintf("to say %q", r.says), func(answer string, _ bool) bool {
		return !slices.ContainsFunc(r.says, func(p string) bool { return !strings.Contains(answer, p) })
	})
}

// quiet waits until a source finds nothing wrong.
func (s *scene) quiet(t *testing.T, source string) {
	t.Helper()
	s.hear(t, source, "to find nothing wrong", func(_ string, well bool) bool { return well })
}

// healthy waits until all sources find nothing wrong, and none says what the document
// claims of the alarm.
func (s *scene) healthy(t *testing.T, about section) {
	t.Helper()
	for _, r := range about.rows {
		if r.source == "event" {
			continue // it has been called
		}
		s.hear(t, r.source, fmt.Sprintf("to find nothing wrong, and not to say %q", r.says), func(answer string, well bool) bool {
			return well && !slices.ContainsFunc(r.says, func(p string) bool { return strings.Contains(answer, p) })
		})
	}
}

// hear asks a source until it answers as it should.
func (s *scene) hear(t *testing.T, source, what string, right func(answer string, well bool) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		answer, well := s.ask(t, source)
		if right(strings.Join(strings.Fields(answer), " "), well) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s %s. It says:\n%s", source, what, answer)
		}
	}
}

// section is what docs/runbook.md says of an alarm.
type section struct {
	rows []row    // of its table
	look []string // commands
	mend []string // commands, and SQL
}

// row is what a source says, in order; nothing: it finds nothing wrong, or knows of nothing.
type row struct {
	source string
	says   []string
}

// sources are those that find nothing wrong in sections without a row of them.
var sources = []string{"doctor", "status", "status --check", "console /", "/readyz", "/livez", "event"}

// runbook reads the sections of the document, by heading.
func runbook(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, part := range strings.Split(string(text), "\n## ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		all[name] = rest
	}
	return all
}

var (
	tableRow = regexp.MustCompile(`(?m)^\| (.+?) \| (.+) \|$`)
	phrase   = regexp.MustCompile("`([^`]+)`")
	block    = regexp.MustCompile("(?s)```(sh|sql)\n(.*?)\n```")
)

// read finds the sources and the commands of a section.
func read(t *testing.T, text string) (s section) {
	t.Helper()
	have := map[string]bool{}
	for _, cells := range tableRow.FindAllStringSubmatch(text, -1) {
		var says []string
		claim, _, _ := strings.Cut(cells[2], ";") // and an explanation
		for _, p := range phrase.FindAllStringSubmatch(claim, -1) {
			says = append(says, p[1])
		}
		for _, source := range strings.Split(strings.ReplaceAll(cells[1], "`", ""), ", ") {
			if source == "asked" {
				continue // the head of the table
			}
			have[source] = true
			s.rows = append(s.rows, row{source: source, says: says})
		}
	}
	for _, v := range sources {
		if !have[v] {
			s.rows = append(s.rows, row{source: v})
		}
	}
	look, mend, found := strings.Cut(text, "\n**Remedy.**")
	if !found {
		t.Error("a section of docs/runbook.md has no remedy")
	}
	for _, b := range block.FindAllStringSubmatch(look, -1) {
		s.look = append(s.look, strings.Split(b[2], "\n")...)
	}
	for _, b := range block.FindAllStringSubmatch(mend, -1) {
		if b[1] == "sql" {
			s.mend = append(s.mend, b[2])
		} else {
			s.mend = append(s.mend, strings.Split(b[2], "\n")...)
		}
	}
	return s
}
