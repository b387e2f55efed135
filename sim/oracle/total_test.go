package oracle

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/sim/history"
)

func TestCampaignFailsWhenSomethingNeverComes(t *testing.T) {
	run := func(seconds float64, cuts, reached int64) *Report {
		r := reportOf(1, Finding{Name: "order", Checks: 1})
		r.Seconds, r.Faults = seconds, []Injected{{"async-writers", 1, 3, []Condition{UnsafeCommits}}, {"cut", 1, cuts, []Condition{CutConnections}}}
		r.Reached = []State{{cutCommitted, reached}, {takenBack, 0}} // of the latter there was no chance: no crash was on
		return r
	}
	without := run(30, 0, 0) // connections that are cut
	without.Faults = without.Faults[:1]
	for _, c := range []struct {
		runs          int
		seconds       float64
		cuts, reached int64
		held          bool
		says          []string
	}{
		{20, 30, 1, 1, true, []string{"verdict: all 20 runs held\n"}},
		{20, 30, 0, 1, false, []string{"FAILED", "on, but never happened: cut\n"}},
		{20, 30, 1, 0, false, []string{"FAILED", "never reached: " + cutCommitted + "\n"}},
		{20, 29.9, 0, 0, true, []string{"verdict: all 20 runs held\n"}},
		{19, 32, 0, 0, true, []string{"verdict: all 19 runs held\n", "on, but never happened: cut\n"}},
	} {
		total := Sum(slices.Repeat([]*Report{run(c.seconds, c.cuts, c.reached)}, c.runs))
		var b strings.Builder
		if err := total.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if (total.Outcome == Held) != c.held {
			t.Errorf("%+v: held %v, want %v", c, total.Outcome, c.held)
		}
		// What a run could bring, that is made again.
		if lacks := total.Lacks(run(30, 0, 0)); len(lacks) != int(one(!c.held)) || len(total.Lacks(without)) > 0 {
			t.Errorf("%+v: a run could bring %q, one without the fault %q", c, lacks, total.Lacks(without))
		}
		for _, want := range c.says {
			if !strings.Contains(b.String(), want) {
				t.Errorf("the sum lacks %q:\n%s", want, b.String())
			}
		}
	}
}

// A run of jobs reaches more in a second.
func TestCampaignOfJobs(t *testing.T) {
	soon := 0
	for _, s := range jobStates {
		soon += int(one(s.slow == 0))
	}
	for seconds, missing := range map[float64]int{2.9: 0, 3.1: soon, 100: len(jobStates)} {
		r := reportOf(1, Finding{Name: "asked once", Checks: 1})
		r.Seconds, r.Jobs, r.Reached, r.Faults = seconds, &JobsDone{}, nil, nil
		for _, s := range jobStates {
			r.Reached = append(r.Reached, State{Name: s.name})
			r.Faults = append(r.Faults, Injected{Reaches: s.needs, Count: 1})
			for _, c := range s.needs {
				r.Faults = append(r.Faults, Injected{Reaches: []Condition{c}, Count: 1})
			}
		}
		total := Sum(slices.Repeat([]*Report{r}, campaign))
		if len(total.Unreached) != missing || (total.Outcome == Held) != (missing == 0) {
			t.Errorf("%d runs of %.1fs miss %d states, want %d", campaign, seconds, len(total.Unreached), missing)
		}
	}
}

// More than one run in ten that was not judged, or one of fewer than ten, is too much. What
// was broken counts before that.
func TestOutcomeOfCampaign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		held := rapid.IntRange(0, 19).Draw(t, "held")
		unjudged := rapid.IntRange(0, 4).Draw(t, "not judged")
		broken := rapid.IntRange(0, 1).Draw(t, "broken")
		var reports []*Report
		for range held {
			reports = append(reports, reportOf(1, Finding{Name: "order", Checks: 1}))
		}
		for range unjudged {
			r := reportOf(2)
			r.Evidence = &history.Evidence{Harness: &history.HarnessFailure{Step: "the copy"}}
			r.judge()
			reports = append(reports, r)
		}
		for range broken {
			reports = append(reports, reportOf(3, Finding{Name: "order", Checks: 1, Broken: 1}))
		}
		total, runs := Sum(reports), held+unjudged+broken
		want := Held
		switch {
		case broken > 0:
			want = Broken
		case unjudged > runs/10:
			want = NotJudged
		}
		if total.Outcome != want || total.Runs != runs || len(total.NotJudged) != unjudged || total.Held != held {
			t.Fatalf("%d held, %d not judged, %d broken: %+v, want %q", held, unjudged, broken, total, want)
		}
		if says := strings.Contains(total.verdict(), "seeds 2"); says != (unjudged > 0) {
			t.Fatalf("%d not judged, and the verdict is %q", unjudged, total.verdict())
		}
	})
}

func TestSumOfEventsAndJobs(t *testing.T) {
	events, jobs := reportOf(1, Finding{Name: "order", Rule: "of events", Checks: 1}, Finding{Name: "life cycle", Rule: "of both", Checks: 2}), reportOf(2, Finding{Name: "life cycle", Rule: "of jobs", Checks: 4})
	jobs.Jobs = &JobsDone{Enqueued: 9}
	total := Sum([]*Report{events, jobs, events})
	got := map[string]int64{}
	for _, f := range total.Invariants {
		got[f.Name+" "+f.Rule] = f.Checks
	}
	if want := map[string]int64{"order of events": 2, "life cycle of both": 4, "life cycle of jobs": 4}; !maps.Equal(got, want) {
		t.Errorf("the invariants are %v, want %v", got, want)
	}
	if total.Jobs.Enqueued != 9 || total.Counts[0].Count != 9 {
		t.Errorf("the sum: %+v", total)
	}
}

func TestSum(t *testing.T) {
	good := Finding{Name: "order", Checks: 10}
	bad := Finding{Name: "order", Checks: 10, Broken: 1, Examples: []string{"a applied 2 before 1"}}
	total := Sum([]*Report{reportOf(1, good), reportOf(2, bad), {Seed: 3, Interrupted: true}})
	if total.Runs != 2 || total.Held != 1 || len(total.Broken) != 1 || total.Broken[0] != 2 || total.Events != 2000 ||
		total.Counts[0].Count != 6 || total.Invariants[0].Checks != 20 || total.Invariants[0].Broken != 1 {
		t.Errorf("the sum: %+v", total)
	}
	var b strings.Builder
	if err := total.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"for example:", "- seed 2: a applied 2 before 1\n", "verdict: BROKEN in 1 of 2 runs, seeds 2"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the sum lacks %q:\n%s", want, b.String())
		}
	}
}
