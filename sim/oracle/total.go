package oracle

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/sim/history"
)

// Total sums up several runs.
type Total struct {
	Runs       int             `json:"runs"`
	Held       int             `json:"held"`
	Broken     []uint64        `json:"broken_seeds"`
	Events     int64           `json:"events"`
	Jobs       *JobsDone       `json:"jobs,omitempty"`
	Counts     []history.Count `json:"counts"`
	Reached    []State         `json:"reached"`
	Missing    []string        `json:"missing_faults"` // that were on for long enough and never happened
	Unreached  []string        `json:"missing_states"` // that could have been reached for long enough and never were
	Invariants []Finding       `json:"invariants"`
}

// A campaign of many runs is to show every fault and every state for which
// there was time enough: what a slow machine had time for, where a second has fewer.
const (
	campaign = 20  // runs
	enough   = 600 // seconds of runs in which it could have come, which makes four times or more likely
	ofJobs   = 60  // the same of a state in a run of jobs, up to the last fault: more is done in a second; twice that of a fault
)

// Sum adds up the runs that were judged.
func Sum(reports []*Report) Total {
	t := Total{Broken: []uint64{}}
	happened, chance := map[string]int64{}, map[string]float64{} // of faults and states, by their names
	var on []string
	for _, r := range reports {
		if r.Interrupted {
			continue
		}
		t.Runs++
		if r.Held {
			t.Held++
		} else {
			t.Broken = append(t.Broken, r.Seed)
		}
		t.Events += r.Events
		t.Jobs = t.Jobs.plus(r.Jobs)
		t.add(r)
		for _, f := range r.Faults {
			if !slices.Contains(on, f.Name) {
				on = append(on, f.Name)
			}
			happened[f.Name] += f.Count
			chance[f.Name] += r.chance(2)
		}
		for _, s := range r.states() {
			if s.possible(r) && !s.rare {
				chance[s.name] += r.chance(max(s.slow, 1))
			}
		}
	}
	never := func(name string, count int64) bool { return count == 0 && chance[name] >= 1 }
	for _, name := range on {
		if never(name, happened[name]) {
			t.Missing = append(t.Missing, name)
		}
	}
	for _, s := range t.Reached {
		if never(s.Name, s.Count) {
			t.Unreached = append(t.Unreached, s.Name)
		}
	}
	return t
}

// chance is what the run adds to the chance that something comes: a campaign with 1
// demands it. What is slow takes so many times as long in a run of jobs.
func (r *Report) chance(slow float64) float64 {
	if r.Jobs == nil {
		return r.Seconds / enough
	}
	return (r.Seconds - r.RestSeconds) / (ofJobs * slow)
}

// add adds up what is in tables. All runs have the same rows.
func (t *Total) add(r *Report) {
	if t.Counts == nil {
		t.Counts = make([]history.Count, len(r.Counts))
		t.Reached = make([]State, len(r.Reached))
		t.Invariants = make([]Finding, len(r.Invariants))
	}
	for i, c := range r.Counts {
		t.Counts[i].Fault = c.Fault
		t.Counts[i].Count += c.Count
	}
	for i, s := range r.Reached {
		t.Reached[i].Name = s.Name
		t.Reached[i].Count += s.Count
	}
	for i, f := range r.Invariants {
		t.Invariants[i].Name, t.Invariants[i].Rule = f.Name, f.Rule
		t.Invariants[i].Checks += f.Checks
		t.Invariants[i].Broken += f.Broken
		for _, example := range f.Examples {
			if all := &t.Invariants[i].Examples; len(*all) < maxExamples {
				*all = append(*all, fmt.Sprintf("seed %d: %s", r.Seed, example))
			}
		}
	}
}

// AllHeld reports that every run held, and, if they are many, that nothing is
// missing that should have come in one of them.
func (t Total) AllHeld() bool {
	return t.Held == t.Runs && (t.Runs < campaign || len(t.Missing)+len(t.Unreached) == 0)
}

// WriteText prints the sums for people.
func (t Total) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d runs\n\nhappened\n", t.Runs)
	t.Jobs.write(&b)
	if t.Jobs == nil {
		fmt.Fprintf(&b, "  %-56s %8s\n", "events committed", thousands(t.Events))
	}
	for _, c := range t.Counts {
		fmt.Fprintf(&b, "  %-56s %8s\n", c.Fault, thousands(c.Count))
	}
	writeStates(&b, t.Reached)
	writeFindings(&b, t.Invariants)
	b.WriteString("\n")
	if len(t.Unreached) > 0 {
		fmt.Fprintf(&b, "never reached: %s\n", strings.Join(t.Unreached, "; "))
	}
	if len(t.Missing) > 0 {
		fmt.Fprintf(&b, "on, but never happened: %s\n", strings.Join(t.Missing, ", "))
	}
	fmt.Fprintf(&b, "verdict: %s\n", t.verdict())
	_, err := io.WriteString(w, b.String())
	return err
}

func (t Total) verdict() string {
	switch {
	case len(t.Broken) > 0:
		return fmt.Sprintf("BROKEN in %d of %d runs, seeds %s", len(t.Broken), t.Runs, strings.Trim(fmt.Sprint(t.Broken), "[]"))
	case !t.AllHeld():
		return fmt.Sprintf("all %d runs held, but FAILED: what should have come in one of them never did", t.Runs)
	default:
		return fmt.Sprintf("all %d runs held", t.Runs)
	}
}
