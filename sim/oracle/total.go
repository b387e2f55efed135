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
	Outcome    Outcome         `json:"outcome"`
	Runs       int             `json:"runs"` // the interrupted ones apart
	Held       int             `json:"held"`
	Broken     []uint64        `json:"broken_seeds"`
	NotJudged  []uint64        `json:"not_judged_seeds"`
	SecondTry  int             `json:"judged_at_the_second_try"`
	Events     int64           `json:"events"`
	Jobs       *JobsDone       `json:"jobs,omitempty"`
	Counts     []history.Count `json:"counts"`
	Reached    []State         `json:"reached"`
	Missing    []string        `json:"missing_faults"` // that were on for long enough and never happened
	Unreached  []string        `json:"missing_states"` // that could have been reached for long enough and never were
	Invariants []Finding       `json:"invariants"`

	ofJobs []bool // which of the invariants are those of runs of jobs
}

// A campaign of many runs is to show every fault and every state for which
// there was time enough: what a slow machine had time for, where a second has fewer.
const (
	campaign = 20  // runs
	enough   = 600 // seconds of runs in which it could have come, which makes four times or more likely
	ofJobs   = 60  // the same of a state in a run of jobs, up to the last fault: more is done in a second; twice that of a fault
)

// Sum adds up runs, of events, of jobs or of both.
func Sum(reports []*Report) Total {
	t := Total{Broken: []uint64{}, NotJudged: []uint64{}}
	happened, chance := map[string]int64{}, map[string]float64{} // of faults and states, by their names
	var on []string
	for _, r := range reports {
		switch {
		case r.Interrupted:
			continue
		case r.Outcome == NotJudged:
			t.NotJudged = append(t.NotJudged, r.Seed)
		case r.Held:
			t.Held++
		default:
			t.Broken = append(t.Broken, r.Seed)
		}
		if r.FirstTry != "" {
			t.SecondTry++
		}
		t.Runs++
		t.Events += r.Events
		t.Jobs = t.Jobs.plus(r.Jobs)
		t.add(r)
		if r.Outcome == NotJudged {
			continue // it has not had its time
		}
		for _, f := range r.Faults {
			name := r.nameOf(f)
			if !slices.Contains(on, name) {
				on = append(on, name)
			}
			happened[name] += f.Count
			chance[name] += r.chance(2)
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
	t.Outcome = t.decide()
	return t
}

// Lacks lists the faults and states that the campaign demands and lacks, and that a run such as r
// could bring. Runs that broke are enough of a verdict.
func (t Total) Lacks(r *Report) (names []string) {
	if t.Runs < campaign || len(t.Broken) > 0 || r.Outcome == NotJudged {
		return nil
	}
	for _, f := range r.Faults {
		if name := r.nameOf(f); slices.Contains(t.Missing, name) {
			names = append(names, name)
		}
	}
	for _, s := range r.states() {
		if slices.Contains(t.Unreached, s.name) && s.possible(r) {
			names = append(names, s.name)
		}
	}
	return names
}

// nameOf is the name of a fault. Events and jobs have faults of the same names.
func (r *Report) nameOf(f Injected) string {
	if r.Jobs != nil {
		return f.Name + " (jobs)"
	}
	return f.Name
}

// decide returns the verdict on all runs. What was broken in one of them counts; so does,
// if they are many, what should have come in one of them. Else more than one run in ten
// that was not judged leaves too little to say that all is well.
func (t Total) decide() Outcome {
	switch {
	case len(t.Broken) > 0, t.Runs >= campaign && len(t.Missing)+len(t.Unreached) > 0:
		return Broken
	case t.tooMany():
		return NotJudged
	}
	return Held
}

// tooMany reports whether more than one run in ten was not judged.
func (t Total) tooMany() bool { return len(t.NotJudged)*10 > t.Runs }

// chance is what the run adds to the chance that something comes: a campaign with 1
// demands it. What is slow takes so many times as long in a run of jobs.
func (r *Report) chance(slow float64) float64 {
	if r.Jobs == nil {
		return r.Seconds / enough
	}
	return (r.Seconds - r.RestSeconds) / (ofJobs * slow)
}

// add adds up what is in tables. A row is found by its name: runs of events and of jobs
// have different rows, and one that was not judged lacks some.
func (t *Total) add(r *Report) {
	for _, c := range r.Counts {
		row(&t.Counts, func(x history.Count) bool { return x.Fault == c.Fault }, history.Count{Fault: c.Fault}).Count += c.Count
	}
	for _, s := range r.Reached {
		row(&t.Reached, func(x State) bool { return x.Name == s.Name }, State{Name: s.Name}).Count += s.Count
	}
	for _, f := range r.Invariants {
		t.addFinding(r, f)
	}
}

func (t *Total) addFinding(r *Report, f Finding) {
	jobs := r.Jobs != nil
	i := 0
	for i < len(t.Invariants) && (t.Invariants[i].Name != f.Name || t.ofJobs[i] != jobs) {
		i++
	}
	if i == len(t.Invariants) {
		t.Invariants, t.ofJobs = append(t.Invariants, Finding{Name: f.Name}), append(t.ofJobs, jobs)
	}
	sum := &t.Invariants[i]
	sum.Rule = f.Rule
	sum.Checks += f.Checks
	sum.Broken += f.Broken
	for _, example := range f.Examples {
		if len(sum.Examples) < maxExamples {
			sum.Examples = append(sum.Examples, fmt.Sprintf("seed %d: %s", r.Seed, example))
		}
	}
}

// row returns the row of a table that is meant, and adds it if there is none.
func row[T any](table *[]T, is func(T) bool, empty T) *T {
	i := slices.IndexFunc(*table, is)
	if i < 0 {
		i = len(*table)
		*table = append(*table, empty)
	}
	return &(*table)[i]
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
	writeFindings(&b, t.Invariants, map[bool]string{true: "-", false: "BROKEN"}[len(t.NotJudged) > 0])
	b.WriteString("\n")
	if len(t.Unreached) > 0 {
		fmt.Fprintf(&b, "never reached: %s\n", strings.Join(t.Unreached, "; "))
	}
	if len(t.Missing) > 0 {
		fmt.Fprintf(&b, "on, but never happened: %s\n", strings.Join(t.Missing, ", "))
	}
	b.WriteString("verdict: " + t.verdict())
	if t.SecondTry > 0 {
		fmt.Fprintf(&b, "; judged at the second try: %d", t.SecondTry)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (t Total) verdict() string {
	verdict := fmt.Sprintf("all %d runs held", t.Runs)
	switch {
	case len(t.Broken) > 0:
		verdict = fmt.Sprintf("BROKEN in %d of %d runs, seeds %s", len(t.Broken), t.Runs, list(t.Broken))
	case t.Outcome == Broken:
		verdict = fmt.Sprintf("%d of %d runs held, none broke, but FAILED: what should have come in one of them never did", t.Held, t.Runs)
	case t.Outcome == NotJudged:
		often := map[bool]string{true: "more than one in ten, "}[t.tooMany()]
		return fmt.Sprintf("NOT JUDGED: %d of %d runs, %sseeds %s; the others held", len(t.NotJudged), t.Runs, often, list(t.NotJudged))
	case len(t.NotJudged) > 0:
		verdict = fmt.Sprintf("%d of %d runs held", t.Held, t.Runs)
	}
	if len(t.NotJudged) > 0 {
		verdict += fmt.Sprintf("; %d not judged, seeds %s", len(t.NotJudged), list(t.NotJudged))
	}
	return verdict
}

func list(seeds []uint64) string { return strings.Trim(fmt.Sprint(seeds), "[]") }
