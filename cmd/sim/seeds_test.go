package main

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

func TestWrongSeedsAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ line, says string }{
		"no reason":          {"-seed 7", "a seed needs a reason"},
		"an empty reason":    {"-seed 7 # ", "a seed needs a reason"},
		"no seed":            {"-jobs # all", "there is no -seed"},
		"a bad seed":         {"-seed x # all", `-seed "x" is not a number`},
		"a flag of all runs": {"-seed 7 -runs 3 # many", "-runs; allowed are -consumers -duration -faults -jobs -seed -workers -writers"},
		"a word":             {"-seed 7 now # soon", `unexpected argument "now"`},
		"no such fault":      {"-seed 7 -faults crush=1 # hard", `there is no fault "crush"`},
		"a fault of events":  {"-jobs -seed 7 -faults contract=1 # broken", `there is no fault "contract"`},
		"out of range":       {"-seed 7 -workers 0 # none", "-workers 0 is out of range"},
		"consumers of jobs":  {"-jobs -seed 7 -consumers 2 # two", "-consumers is of no use with -jobs"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "seeds")
			if err := os.WriteFile(file, []byte("# all\n\n-seed 1 # good\n"+c.line+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			if status := run(t.Context(), []string{"-seeds", file}, &stdout, &stderr); status != command.Error {
				t.Errorf("exit status %d, want %d", status, command.Error)
			}
			if stdout.Len() > 0 || !strings.Contains(stderr.String(), file+":4: ") || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("stdout %q, stderr %q; want nothing, and line 4 with %q", stdout.String(), stderr.String(), c.says)
			}
		})
	}
	if _, err := parseSeeds("none", "# nothing\n\n"); err == nil || !strings.Contains(err.Error(), "none: there is no seed") {
		t.Errorf("a file of comments: %v", err)
	}
}

// What is read of a line is what the command line would say.
func TestSeedsAreReadAsTyped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := sim.DefaultConfig()
		c.Jobs = rapid.Bool().Draw(t, "jobs")
		c.Seed = rapid.Uint64().Draw(t, "seed")
		c.Workers = rapid.IntRange(1, 50).Draw(t, "workers")
		c.Duration = time.Duration(rapid.IntRange(1, 100).Draw(t, "seconds")) * time.Second
		program := map[bool]string{false: "", true: "-jobs"}[c.Jobs]
		line := strings.TrimSpace(c.CommandLine(program, sim.DefaultConfig(), rapid.SampledFrom([]string{"", "none", "crash=2,cut=0.5"}).Draw(t, "faults")))
		reason := rapid.StringMatching(`[a-z# -]*[a-z]`).Draw(t, "reason")
		all, err := parseSeeds("file", "\n  # no run\n"+line+" # "+reason+"\n")
		if err != nil || len(all) != 1 {
			t.Fatalf("%q: %v, %v", line, all, err)
		}
		got := all[0]
		if got.at != "file:3" || got.flags != line || got.reason != strings.TrimSpace(reason) {
			t.Fatalf("read %+v", got)
		}
		if x := got.config; x.Jobs != c.Jobs || x.Seed != c.Seed || x.Workers != c.Workers || x.Duration != c.Duration || x.Writers != c.Writers {
			t.Fatalf("%q is read as %+v, want %+v", line, x, c)
		}
	})
}

// Each fault is on in one of the recorded seeds at least.
func TestRecordedSeedsHaveEveryFault(t *testing.T) {
	t.Parallel()
	seeds, err := readSeeds("../../sim/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	lacking := map[bool]sim.Intensities{false: sim.Faults(false).All(), true: sim.Faults(true).All()}
	for _, s := range seeds {
		for name, intensity := range sim.Draw(s.config).Faults {
			if intensity > 0 {
				delete(lacking[s.config.Jobs], name)
			}
		}
		if d := s.config.Duration; d < 5*time.Second || d > 6*time.Second {
			t.Errorf("%s: it takes %v, want 5s to 6s", s.at, d)
		}
	}
	for jobs, faults := range lacking {
		if len(faults) > 0 {
			t.Errorf("jobs %v: no seed has the faults %v", jobs, slices.Sorted(maps.Keys(faults)))
		}
	}
}

func TestSeedsAreSummedUp(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "seeds")
	lines := "-seed 3 -workers 1 -writers 3 -consumers 1 -duration 1s -faults crash=2,rollback=1,stale=1,delay=1 # events\n" +
		"-jobs -seed 4 -workers 1 -writers 2 -duration 1s -faults crash=2,error=1,rollback=1 # jobs\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-db", pgtest.Server(t).URL(""), "-seeds", file}, &stdout, &stderr); status != command.OK {
		t.Errorf("exit status %d, want %d:\n%s\n%s", status, command.OK, stdout.String(), stderr.String())
	}
	for _, want := range []string{"seed 3: all 14", "seed 4: all 2", "2 runs", "jobs enqueued", "verdict: all 2 runs held"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, stdout.String())
		}
	}
}

// The lines of runs that did not hold are named, with the command.
func TestLinesThatFailedAreNamed(t *testing.T) {
	t.Parallel()
	seeds, err := parseSeeds("seeds", "-seed 3 # events\n-jobs -seed 4 -duration 5s # jobs\n")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := nameLines(&out, seeds, reportsOf("held", "not judged")); err != nil {
		t.Fatal(err)
	}
	if want := "NOT JUDGED: seeds:2: go run ./cmd/sim -jobs -seed 4 -duration 5s # jobs\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// Each recorded seed is the test of one defect: all are to be judged.
func TestRecordedSeedThatIsNotJudgedCounts(t *testing.T) {
	t.Parallel()
	reports := reportsOf(append(slices.Repeat([]oracle.Outcome{oracle.Held}, 9), oracle.NotJudged)...)
	for _, c := range []struct {
		seeds []recorded
		want  int
		says  string
	}{
		{nil, command.OK, "verdict: 9 of 10 runs held; 1 not judged"},
		{make([]recorded, 10), command.NotJudged, "verdict: NOT JUDGED: 1 of 10 runs, seeds 0; the others held"},
	} {
		total := options{seeds: c.seeds}.sum(reports)
		var out bytes.Buffer
		if err := total.WriteText(&out); err != nil || !strings.Contains(out.String(), c.says) {
			t.Errorf("%d recorded: it lacks %q, %v\n%s", len(c.seeds), c.says, err, out.String())
		}
		if got := status(t.Context(), total, nil, io.Discard); got != c.want {
			t.Errorf("%d recorded: exit status %d, want %d", len(c.seeds), got, c.want)
		}
	}
}
