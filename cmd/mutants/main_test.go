package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/lab/mutants"
	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/oracle"
)

func TestWrongUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"unknown flag":   {[]string{"-fast"}, "-fast"},
		"argument":       {[]string{"now"}, `unexpected argument "now"`},
		"no such mutant": {[]string{"-only", "head,tail"}, `there is no mistake "tail"`},
		"no runs":        {[]string{"-runs", "0"}, "-runs 0 is out of range"},
		"no sample":      {[]string{"-sample", "-1"}, "-sample -1 is out of range"},
		"too short":      {[]string{"-duration", "1ms"}, "-duration 1ms is out of range"},
		"bad seed":       {[]string{"-seed", "-1"}, `-seed "-1" is not a number`},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if status := run(t.Context(), c.args, &stdout, &stderr); status != command.Error {
				t.Errorf("exit status %d, want %d", status, command.Error)
			}
			if stdout.Len() > 0 || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("stdout %q, stderr %q; want nothing, and something that says %q", stdout.String(), stderr.String(), c.says)
			}
		})
	}
}

// A sample is the same for a seed, in order, and another one for most seeds.
func TestSample(t *testing.T) {
	names := func(args ...string) (all []string) {
		o, err := parse(args, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range o.mutants {
			all = append(all, m.Name)
		}
		return all
	}
	all, some := names(), names("-sample", "5", "-seed", "7")
	if len(some) != 5 || !slices.Equal(some, names("-sample", "5", "-seed", "7")) || slices.Equal(some, names("-sample", "5", "-seed", "8")) {
		t.Errorf("a sample of 5 is %q", some)
	}
	if !slices.IsSortedFunc(some, func(a, b string) int { return slices.Index(all, a) - slices.Index(all, b) }) {
		t.Errorf("%q are not in the order of the list", some)
	}
	if n := len(names("-sample", "1000")); n != len(all) {
		t.Errorf("a sample of too many has %d, want %d", n, len(all))
	}
}

func TestHelpAndList(t *testing.T) {
	for flag, wanted := range map[string][]string{
		"-h":    {"-only", "-runs", "-duration", "-all", "-list", "-seed", "Exit status", "default 40"},
		"-list": {"head ", "no-owner ", "always: "},
	} {
		var stdout, stderr bytes.Buffer
		if status := run(t.Context(), []string{flag}, &stdout, &stderr); status != command.OK || stderr.Len() > 0 {
			t.Errorf("%s: exit status %d, want %d; stderr %q", flag, status, command.OK, stderr.String())
		}
		for _, want := range wanted {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("%s lacks %q:\n%s", flag, want, stdout.String())
			}
		}
	}
}

func TestResultsAreCounted(t *testing.T) {
	held := &oracle.Report{Held: true}
	broken := func(seed uint64, name string) *oracle.Report {
		return &oracle.Report{Seed: seed, Invariants: []oracle.Finding{{Name: "order", Checks: 3}, {Name: name, Checks: 3, Broken: 1}}}
	}
	results := []result{{mutant: mutants.Mutant{Name: "blunder"}}, {mutant: mutants.Mutant{Name: "slip"}}, {mutant: mutants.Mutant{Name: "quirk", Harmless: "of no use"}}}
	for _, report := range []*oracle.Report{held, broken(7, "audit"), broken(8, "forwards"), broken(9, "audit")} {
		results[0].note(report)
	}
	results[1].runs, results[2].runs = 20, 20
	var out bytes.Buffer
	if missed, _ := (options{duration: time.Second}).report(&out, results); missed != 1 {
		t.Errorf("%d were missed, want 1", missed)
	}
	for _, want := range []string{
		"caught in 3 of 4 runs, by audit, forwards\n", "-only blunder -runs 1 -duration 1s -seed 7\n",
		"NOT CAUGHT in 20 runs\n", "harmless: of no use\n", "1 of 3 mistakes were NOT CAUGHT",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if missed, _ := (options{}).report(&out, results[2:]); missed != 0 || !strings.Contains(out.String(), "all 1 mistakes") {
		t.Errorf("%d were missed, want 0:\n%s", missed, out.String())
	}
	results[2].note(broken(1, "order"))
	if missed, _ := (options{}).report(&out, results[2:]); missed != 1 || !strings.Contains(out.String(), "NOT HARMLESS") {
		t.Errorf("%d were missed, want the harmless one that is not:\n%s", missed, out.String())
	}
}

// A run that was not judged catches nothing, and does not count as one that has not.
func TestRunNotJudgedIsNoResult(t *testing.T) {
	unjudged := &oracle.Report{Seed: 5, Outcome: oracle.NotJudged, Invariants: []oracle.Finding{{Name: "order"}}}
	r := result{mutant: mutants.Mutant{Name: "blunder"}, most: 2}
	r.note(unjudged)
	r.note(unjudged)
	if r.runs != 0 || r.caught != 0 || r.missed() || !r.unknown() {
		t.Errorf("after two runs that were not judged: %+v, missed %v, unknown %v", r, r.missed(), r.unknown())
	}
	var out bytes.Buffer
	if missed, unknown := (options{}).report(&out, []result{r}); missed != 0 || unknown != 1 || !strings.Contains(out.String(), "NOT JUDGED: none of 2 runs was") {
		t.Errorf("%d missed, %d unknown:\n%s", missed, unknown, out.String())
	}
	held := &oracle.Report{Seed: 6, Outcome: oracle.Held, Held: true}
	r.note(held)
	if r.runs != 1 || !r.unknown() || r.missed() || r.String() != "NOT JUDGED: 2 of 3 runs were not" {
		t.Errorf("after one of two that held: %+v, missed %v, unknown %v: %s", r, r.missed(), r.unknown(), r)
	}
	r.note(held)
	if r.runs != 2 || r.unknown() || !r.missed() {
		t.Errorf("after two that held: %+v, missed %v, unknown %v", r, r.missed(), r.unknown())
	}
}

func TestFaultsAlwaysOn(t *testing.T) {
	for _, b := range mutants.All() {
		if _, err := drawn(1, b); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
		suitable := 0
		for seed := range uint64(400) {
			suitable += map[bool]int{true: 1}[comesUp(b, seed)]
		}
		if suitable < 50 {
			t.Errorf("%s: %d of 400 seeds draw %q", b.Name, suitable, b.Draws)
		}
	}
	for seed := range uint64(50) {
		before := sim.Draw(sim.Config{Seed: seed}).Faults
		after, err := drawn(seed, mutants.Mutant{Faults: "prepare=1.5,move=0"})
		if err != nil {
			t.Fatal(err)
		}
		if after["prepare"] != 1.5 || after["move"] != 0 || after["crash"] != before["crash"] {
			t.Fatalf("seed %d: drawn %v, then %v", seed, before, after)
		}
	}
}
