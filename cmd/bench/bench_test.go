package main

import (
	"context"
	"encoding/xml"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/store"
)

// The test program is also the other processes of the scenarios.
func TestMain(m *testing.M) {
	if r := os.Getenv(roleVariable); r != "" {
		os.Exit(work(r))
	}
	pgtest.Main(m)
}

// small is as short as a scenario can be and still count.
var small = size{
	appends: 3, rounds: 2, load: 100 * time.Millisecond,
	threshold: 300 * time.Millisecond, open: 500 * time.Millisecond,
	holder: time.Second, pairs: 50, unrelated: 100 * time.Millisecond,
	history: 3_000, passes: 1, rebuild: 500 * time.Millisecond,
	idle: 100 * time.Millisecond,
	logs: [2]int{1_000, 100_000}, bulk: 2_000, upserts: 300, followers: []int{1, 3}, many: 100 * time.Millisecond,
	handovers: 1, groups: []int{2, 4}, units: 20, rest: 100 * time.Millisecond, rebalances: 1,
	outage:   200 * time.Millisecond,
	backlogs: [2]int{300, 1_000}, jobs: 100, manyJobs: 300, jobRounds: 1, foreign: 500, foreignEach: 3, finished: 1_500,
}

// Every scenario runs, has something to say, and counts right. How fast it
// was is not judged here.
func TestScenarios(t *testing.T) {
	server := pgtest.Server(t)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			if !slices.Contains([]string{"latency", "upsert", "jobs-history"}, s.name) {
				tier.Long(t, "TestScenarios, of which three scenarios run")
			}
			t.Parallel()
			l := &lab{server: server, size: small}
			rows, err := s.run(t.Context(), l)
			if err := errors.Join(err, l.close()); err != nil {
				t.Fatal(err)
			}
			counted := 0
			for _, r := range rows {
				counted += r.counted
				if r.part == "" || r.measured == "" {
					t.Errorf("an empty row: %+v", r)
				}
			}
			if counted == 0 {
				t.Errorf("nothing was counted: %+v", rows)
			}
		})
	}
}

// The ledgers must not agree if one of them was tampered with.
func TestCompare(t *testing.T) {
	for name, test := range map[string]struct {
		tamper func(*journal, *recorder)
		want   string // of the error; empty: none
	}{
		"right":     {func(*journal, *recorder) {}, ""},
		"lost":      {func(j *journal, _ *recorder) { j.committed[4] = time.Now() }, "lost 1 ([4])"},
		"invented":  {func(j *journal, _ *recorder) { delete(j.committed, 2) }, "never committed 1 ([2])"},
		"again":     {func(_ *journal, r *recorder) { handle(r, 3) }, "handled again 1 ([3])"},
		"unchecked": {func(j *journal, r *recorder) { clear(j.committed); clear(r.at) }, "nothing was checked"},
	} {
		t.Run(name, func(t *testing.T) {
			j, r := &journal{committed: map[int64]time.Time{}}, newRecorder("c")
			for p := range int64(3) {
				j.committed[p+1] = time.Now()
				handle(r, p+1)
			}
			test.tamper(j, r)
			switch err := j.compare(r); {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("the error is %v, want %q in it", err, test.want)
			}
		})
	}
}

func handle(r *recorder, position int64) {
	_ = r.Handle(context.Background(), nil, store.PersistedEvent{GlobalPosition: position})
}

// At least the share q of the durations are not above the quantile, and fewer
// are below it.
func TestQuantile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := durations(rapid.SliceOfN(rapid.Map(rapid.Int64Range(0, 50), func(n int64) time.Duration { return time.Duration(n) }), 1, 200).Draw(t, "durations"))
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		got := d.quantile(q)
		below, upTo := 0, 0
		for _, x := range d {
			if x < got {
				below++
			}
			if x <= got {
				upTo++
			}
		}
		if !slices.Contains(d, got) || float64(upTo) < q*float64(len(d)) || float64(below) >= q*float64(len(d)) {
			t.Fatalf("of %d durations %d are below %d and %d not above it", len(d), below, got, upTo)
		}
	})
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args, stdout, stderr string
		status               int
	}{
		{"-h", "rollback", "", command.OK},
		{"-run latency,nothing", "", `no scenario "nothing"`, command.Error},
		{"-fast", "", "not defined: -fast", command.Error},
		{"latency", "", `unexpected argument "latency"`, command.Error},
	} {
		var stdout, stderr strings.Builder
		if status := run(t.Context(), strings.Fields(test.args), &stdout, &stderr); status != test.status {
			t.Errorf("%s: status %d, want %d", test.args, status, test.status)
		}
		if !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("%s: prints\n%s\nand\n%s", test.args, &stdout, &stderr)
		}
	}
}

// A goal that was missed is shown, and a count that was wrong as well.
func TestReport(t *testing.T) {
	r := &report{machine: []string{"a machine"}, command: "bench"}
	r.add(scenarios[0].name, []row{
		{part: "fast", measured: "1 ms", goal: "<= 2 ms", reached: true, counted: 1000},
		{part: "slow", measured: "3 ms", goal: "<= 2 ms"},
		{part: "as it is", measured: "4 ms"},
	}, nil)
	r.add(scenarios[1].name, nil, errors.New("lost 1"))
	var text, page strings.Builder
	if err := errors.Join(r.writeText(&text), r.writeMarkdown(&page, "page.svg")); err != nil {
		t.Fatal(err)
	}
	for out, wants := range map[string][]string{
		text.String(): {"1,000\n", "NO", "BROKEN: rollback: lost 1", "a machine"},
		page.String(): {"| latency | fast | 1 ms | <= 2 ms | 1,000 |\n", "| latency | slow | 3 ms | <= 2 ms: NO |  |\n", "| latency | as it is | 4 ms |  |  |\n", "**BROKEN**: rollback: lost 1", "- a machine\n", "(page.svg)", "`bench -run latency`"},
	} {
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	}
}

// Every ratio has its bar, and the page where it belongs is XML.
func TestPlot(t *testing.T) {
	r := &report{}
	r.add(scenarios[0].name, []row{
		{part: "half & half", ratio: 0.5, least: 0.75},
		{part: "far", ratio: 12},
		{part: "no ratio", measured: "1 ms"},
	}, nil)
	var plot strings.Builder
	if err := r.writePlot(&plot); err != nil {
		t.Fatal(err)
	}
	var page struct {
		Texts []string   `xml:"text"`
		Rects []struct{} `xml:"rect"`
	}
	if err := xml.Unmarshal([]byte(plot.String()), &page); err != nil {
		t.Fatal(err)
	}
	if len(page.Texts) != 5 || page.Texts[0] != "latency: half & half" || page.Texts[1] != "50%" || page.Texts[3] != "1200%" || len(page.Rects) != 3 {
		t.Errorf("the plot has %d bars and marks, and says %q", len(page.Rects), page.Texts)
	}
}

func TestParseTimes(t *testing.T) {
	const stat = "4711 (postgres: a) b) S 17 4711 4711 0 -1 4194560 1 2 3 4 5 6 70 80 20 0 1 0 99 1 1"
	if got, ok := parseTimes(stat); !ok || got != (times{4711, 17, 110 * time.Millisecond, 1500 * time.Millisecond}) {
		t.Errorf("read %+v, %t", got, ok)
	}
	for _, bad := range []string{"", "1 (a", "1 (a) S 2", strings.Replace(stat, " 5 6 ", " 5 x ", 1)} {
		if got, ok := parseTimes(bad); ok {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

// The ledger must not balance if a row is missing, is there
// twice, or was never in the log.
func TestAuditLedger(t *testing.T) {
	for tampering, want := range map[string]string{
		"SELECT": "",
		"DELETE FROM ledger WHERE position = 2 AND consumer = 'a'":                        "1 events were not handled exactly once",
		"INSERT INTO ledger (consumer, position) VALUES ('a', 3)":                         "1 events were not handled exactly once",
		"UPDATE ledger SET consumer = 'b' WHERE position = 1":                             "1 events were not handled exactly once",
		"INSERT INTO ledger (consumer, position) SELECT DISTINCT consumer, 9 FROM ledger": "1 events were not handled exactly once",
		"DELETE FROM events WHERE global_position = 3":                                    "1 committed events are not in the log",
		"TRUNCATE ledger, events":                                                         "committed events are not in the log",
	} {
		l := &lab{server: pgtest.Server(t)}
		err := l.onSite(t.Context(), func(s *site) error {
			j := newJournal(s, "")
			if err := appendAll(t.Context(), j, 3, nil); err != nil {
				return err
			}
			if _, err := s.db.ExecContext(t.Context(), createLedger+`;
INSERT INTO ledger (consumer, position) SELECT c, p FROM unnest('{a,b,c,d}'::text[]) AS c, generate_series(1, 3) AS p; `+tampering); err != nil {
				return err
			}
			n, err := j.auditLedger(t.Context())
			if err == nil && n != 12 {
				t.Errorf("%d deliveries, want 12", n)
			}
			return err
		})
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("after %s: the error is %v, want %q in it", tampering, err, want)
		}
	}
}
