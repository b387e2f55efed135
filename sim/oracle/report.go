package oracle

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgfrontier/worker/sim/history"
)

// Outcome is a verdict in a word.
type Outcome string

const (
	Held        Outcome = "held"        // every invariant was checked, and none broken
	Broken      Outcome = "broken"      // an invariant was broken
	NotJudged   Outcome = "not judged"  // nothing was broken, and the harness could not do its part: it failed, or left an invariant unchecked
	Interrupted Outcome = "interrupted" // by a person, before anything could be judged
)

// Report is the result of a run.
type Report struct {
	Seed        uint64          `json:"seed"`
	Outcome     Outcome         `json:"outcome"`
	Held        bool            `json:"held"`        // the outcome is Held
	Interrupted bool            `json:"interrupted"` // the outcome is Interrupted
	Verdict     string          `json:"verdict"`
	FirstTry    string          `json:"first_try,omitempty"` // the verdict on an earlier run that was not judged; this one was
	Slowness    float64         `json:"slowness"`            // how many times as long as the reference the machine takes
	Workers     int             `json:"workers"`
	Writers     int             `json:"writers"`
	Server      string          `json:"server"` // its version
	Began       time.Time       `json:"began"`  // the time 0 of the history
	Seconds     float64         `json:"seconds"`
	RestSeconds float64         `json:"rest_seconds"` // from the last fault until all had come to rest
	RestBound   float64         `json:"rest_bound_seconds"`
	Events      int64           `json:"events"` // committed by the writers
	Late        int64           `json:"late"`   // deliveries of events that appeared after they had been passed
	Void        int64           `json:"void"`   // positions in the log that never appeared
	Handled     []Handled       `json:"handled"`
	Jobs        *JobsDone       `json:"jobs,omitempty"` // of a run of jobs, which has no events
	Knobs       []Line          `json:"knobs"`
	Faults      []Injected      `json:"faults"` // that were on
	Counts      []history.Count `json:"counts"`
	Reached     []State         `json:"reached"`
	Invariants  []Finding       `json:"invariants"`
	Repeat      string          `json:"repeat"`           // the command that runs this again
	Reduce      string          `json:"reduce,omitempty"` // the command that searches for a smaller run that fails

	// Evidence is what the report is made from.
	Evidence *history.Evidence `json:"-"`
}

// Line is a name and a value to be printed.
type Line struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Handled is how many events a consumer has applied.
type Handled struct {
	Consumer string `json:"consumer"`
	Events   int64  `json:"events"`
}

// Injected is a fault that was on, how intense, and how often it was seen to
// happen.
type Injected struct {
	Name      string      `json:"name"`
	Intensity float64     `json:"intensity"`
	Count     int64       `json:"count"`
	Reaches   []Condition `json:"reaches,omitempty"` // what it brings about
}

// Judge completes a report with what the evidence says: it needs nothing else,
// so the same evidence is always judged the same. A run that was interrupted is
// summed up, not judged.
func (r *Report) Judge(e *history.Evidence) {
	r.RestSeconds, r.RestBound = e.Rest.Took.Seconds(), e.Rest.Bound.Seconds()
	r.Events, r.Late, r.Void, r.Handled = int64(len(afterCrashes(e).Committed)), 0, 0, nil
	applied := map[string]int64{}
	for _, x := range e.Ledger {
		applied[x.Consumer]++
		if x.Late {
			r.Late++
		}
	}
	if n := len(e.Log); n > 0 {
		r.Void = e.Log[n-1].Position - int64(n)
	}
	for _, c := range e.Consumers {
		r.Handled = append(r.Handled, Handled{c.Name, applied[c.Name]})
	}
	r.Jobs = jobsDone(e)
	r.Evidence = e
	r.Reached, r.Invariants = Reached(e), nil
	if !r.Interrupted {
		r.Invariants = Judge(e)
	}
	r.judge()
}

// judge sums the findings up in a sentence.
func (r *Report) judge() {
	var broken, unchecked []string
	for _, f := range r.Invariants {
		switch {
		case f.Broken > 0:
			broken = append(broken, fmt.Sprintf("%q (%d times)", f.Name, f.Broken))
		case f.Checks == 0:
			unchecked = append(unchecked, fmt.Sprintf("%q", f.Name))
		}
	}
	crashes := thousands(r.Crashes()) + " worker crashes"
	if r.Crashes() == 1 {
		crashes = "1 worker crash"
	}
	over := fmt.Sprintf("%s events, at least %s for each consumer, and %s", thousands(r.Events), thousands(r.Fewest().Events), crashes)
	if r.Jobs != nil {
		over = fmt.Sprintf("%s jobs, %s runs and %s", thousands(r.Jobs.Enqueued), thousands(r.Jobs.Runs), crashes)
	}
	if len(r.Invariants) == 0 {
		unchecked = []string{"anything"}
	}
	failure := r.harness()
	r.Outcome = outcomeOfRun(r.Interrupted, len(broken), len(unchecked), failure != nil)
	r.Held = r.Outcome == Held
	switch {
	case r.Interrupted:
		r.Verdict = "interrupted: nothing was judged"
	case len(broken) > 0:
		r.Verdict = "BROKEN: " + strings.Join(broken, ", ") + ", over " + over
		if failure != nil {
			r.Verdict += "; later " + failure.String()
		}
	case failure != nil:
		r.Verdict = "NOT JUDGED: " + failure.String()
	case len(r.Invariants) == 0:
		r.Verdict = "nothing was judged"
	case len(unchecked) > 0:
		r.Verdict = "NOT JUDGED: never checked: " + strings.Join(unchecked, ", ") + "; is the run too short?"
	default:
		r.Verdict = fmt.Sprintf("all %d invariants held over %s", len(r.Invariants), over)
	}
}

// outcomeOfRun decides the verdict. What was broken counts, whatever the harness could not do. The
// harness did not do its part if something was left unchecked.
func outcomeOfRun(interrupted bool, broken, unchecked int, harnessFailed bool) Outcome {
	switch {
	case interrupted:
		return Interrupted
	case broken > 0:
		return Broken
	case harnessFailed, unchecked > 0:
		return NotJudged
	}
	return Held
}

// harness is what the harness could not do, nil if it did everything.
func (r *Report) harness() *history.HarnessFailure {
	if r.Evidence == nil {
		return nil
	}
	return r.Evidence.Harness
}

// Again says that the run is the second one with its seed: the first was not judged.
func (r *Report) Again(first *Report) {
	if r.Outcome != NotJudged { // else the verdict names both
		r.FirstTry = first.Verdict
	}
	if failure := r.harness(); failure != nil {
		failure.First = first.harness()
		r.judge()
	}
}

func (r *Report) Crashes() int64 {
	return r.Count(history.Killed) + r.Count(history.LeadersKilled) + r.Count(history.Crashes) + r.Count(history.CommitCrashes) + r.Count(history.IdleCrashes)
}

// Count is how often a fault happened.
func (r *Report) Count(f history.Fault) int64 {
	for _, c := range r.Counts {
		if c.Fault == f {
			return c.Count
		}
	}
	return 0
}

// Fewest is the consumer that has applied the fewest events, and their number.
func (r *Report) Fewest() Handled {
	if len(r.Handled) == 0 {
		return Handled{}
	}
	least := r.Handled[0]
	for _, h := range r.Handled {
		if h.Events < least.Events {
			least = h
		}
	}
	return least
}

// WriteText prints the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	b.WriteString(r.headline())
	b.WriteString("\ndrawn\n")
	for _, k := range r.Knobs {
		fmt.Fprintf(&b, "  %-14s %s\n", k.Name, k.Value)
	}
	b.WriteString("\nhappened\n")
	r.Jobs.write(&b)
	if r.Jobs == nil {
		fmt.Fprintf(&b, "  %-56s %8s\n", "events committed", thousands(r.Events))
	}
	if !r.Interrupted && r.Jobs == nil {
		fmt.Fprintf(&b, "  %-56s %8s\n", "events handled by each consumer, at least", thousands(r.Fewest().Events))
		fmt.Fprintf(&b, "  %-56s %8s\n", "late deliveries", thousands(r.Late))
		fmt.Fprintf(&b, "  %-56s %8s\n", "positions that never appeared", thousands(r.Void))
	}
	for _, c := range r.Counts {
		fmt.Fprintf(&b, "  %-56s %8s\n", c.Fault, thousands(c.Count))
	}
	if len(r.Invariants) > 0 {
		fmt.Fprintf(&b, "  %-56s %8s\n", fmt.Sprintf("from the last fault to rest, at most %.0fs", r.RestBound), fmt.Sprintf("%.1fs", r.RestSeconds))
		writeStates(&b, r.Reached)
		writeFindings(&b, r.Invariants, map[bool]string{true: "-", false: "BROKEN"}[r.Outcome == NotJudged || r.harness() != nil])
	}
	b.WriteString("\n")
	if r.FirstTry != "" {
		fmt.Fprintf(&b, "first:   %s\n", r.FirstTry)
	}
	fmt.Fprintf(&b, "verdict: %s\nrepeat:  %s\n", r.Verdict, r.Repeat)
	if r.Reduce != "" && r.Outcome == Broken {
		fmt.Fprintf(&b, "reduce:  %s\n", r.Reduce)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeStates(b *strings.Builder, states []State) {
	b.WriteString("\nreached\n")
	for _, s := range states {
		fmt.Fprintf(b, "  %-56s %8s\n", s.Name, thousands(s.Count))
	}
}

// writeFindings prints the findings. unchecked is what is said of an invariant that was
// never checked.
func writeFindings(b *strings.Builder, findings []Finding, unchecked string) {
	fmt.Fprintf(b, "\n%-23s %10s\n", "invariants", "checks")
	for _, f := range findings {
		state := "ok"
		switch {
		case f.Broken > 0:
			state = "BROKEN"
		case f.Checks == 0:
			state = unchecked
		}
		fmt.Fprintf(b, "  %-6s %-14s %10s  %s\n", state, f.Name, thousands(f.Checks), f.Rule)
		if f.Broken > 0 {
			example := map[bool]string{true: ", for example:"}[len(f.Examples) > 0]
			fmt.Fprintf(b, "%s broken %s times%s\n", strings.Repeat(" ", 34), thousands(f.Broken), example)
		}
		for _, example := range f.Examples {
			fmt.Fprintf(b, "%s - %s\n", strings.Repeat(" ", 34), example)
		}
	}
}

// thousands prints a number with its thousands apart.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// possible reports whether a run could reach a state.
func (s state) possible(r *Report) bool {
	for _, c := range s.needs {
		if !slices.ContainsFunc(r.Faults, func(f Injected) bool { return slices.Contains(f.Reaches, c) }) {
			return false
		}
	}
	return true
}

// headline says what the run was.
func (r *Report) headline() string {
	if r.Jobs != nil {
		return fmt.Sprintf("seed %d: %d workers of jobs, %d enqueuers on PostgreSQL %s, %.1fs\n", r.Seed, r.Workers, r.Writers, r.Server, r.Seconds)
	}
	return fmt.Sprintf("seed %d: %d workers, %d writers, %d consumers on PostgreSQL %s, %.1fs\n",
		r.Seed, r.Workers, r.Writers, len(r.Handled), r.Server, r.Seconds)
}

// states are those that the run could have reached.
func (r *Report) states() []state {
	if r.Jobs != nil {
		return jobStates
	}
	return states
}

// JobsDone sums up a run of jobs, or several.
type JobsDone struct {
	Enqueued  int64 `json:"enqueued"`  // committed
	Completed int64 `json:"completed"` //
	Runs      int64 `json:"runs"`      // of handlers
	Claims    int64 `json:"claims"`    // of jobs
}

// jobsDone counts what was done, nil if it was no run of jobs.
func jobsDone(e *history.Evidence) *JobsDone {
	if e.Jobs == nil {
		return nil
	}
	d := &JobsDone{Runs: int64(len(e.Jobs.Runs))}
	for _, q := range e.Jobs.Enqueued {
		d.Enqueued += one(q.Outcome == history.EnqueueCommitted && !q.Existing)
	}
	for _, f := range e.Jobs.Finished {
		d.Completed += one(f.State == "completed")
	}
	for _, s := range e.Jobs.Steps {
		d.Claims += one(s.State == "running" && s.Was == "available")
	}
	return d
}

// plus adds two sums, of which both may be nil.
func (d *JobsDone) plus(other *JobsDone) *JobsDone {
	if d == nil || other == nil {
		if d == nil {
			return other
		}
		return d
	}
	return &JobsDone{d.Enqueued + other.Enqueued, d.Completed + other.Completed, d.Runs + other.Runs, d.Claims + other.Claims}
}

// write prints the sums; nothing if there are none.
func (d *JobsDone) write(b *strings.Builder) {
	if d == nil {
		return
	}
	for _, l := range []struct {
		what string
		n    int64
	}{{"jobs enqueued", d.Enqueued}, {"jobs completed", d.Completed}, {"jobs claimed, again and again", d.Claims}, {"runs of handlers", d.Runs}} {
		fmt.Fprintf(b, "  %-56s %8s\n", l.what, thousands(l.n))
	}
}
