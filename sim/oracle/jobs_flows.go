package oracle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pgfrontier/worker/sim/history"
)

// stepAt names a step of a run by its place. A job of a list has its place in the list, too, from
// 1.
type stepAt struct{ n, item int }

// flowLedger is what became of a run of a flow.
type flowLedger struct {
	*jobLedgers
	history.Flow
	run     int64
	key     string
	changes []history.FlowChange
	revived map[string]bool // transactions that have retried it

	// As of the last change that was read.
	state     string
	cancelled bool // and not retried since
	ever      bool // cancelled
	tries     int
	steps     map[stepAt]history.FlowChange // the last of each
}

// flowLedgers sorts the evidence by runs, in the order in which they were started.
func (b *jobLedgers) flowLedgers() (all []*flowLedger) {
	byRun := map[int64]*flowLedger{}
	for _, c := range b.Advances {
		r := byRun[c.Run]
		if r == nil {
			r = &flowLedger{jobLedgers: b, run: c.Run, revived: map[string]bool{}}
			byRun[c.Run] = r
			all = append(all, r)
		}
		r.changes = append(r.changes, c)
		if c.Flow == "" {
			continue
		}
		r.key = c.Key
		r.revived[c.Tx] = r.revived[c.Tx] || c.Was != "" && c.Was != running && c.State == running
		for _, f := range b.Flows {
			if f.Name == c.Flow {
				r.Flow = f
			}
		}
	}
	return all
}

const running = "running" // of runs and of jobs

// read goes through the changes in order, and calls its argument after each.
func (r *flowLedger) read(look func(c history.FlowChange)) {
	r.state, r.cancelled, r.ever, r.tries, r.steps = "", false, false, 1, map[stepAt]history.FlowChange{}
	tx := ""
	for _, c := range r.changes {
		if r.revived[c.Tx] && c.Tx != tx {
			tx, r.tries, r.cancelled = c.Tx, r.tries+1, false
		}
		at := stepAt{c.Step, c.Item}
		switch {
		case c.Flow != "":
			r.state, r.cancelled, r.ever = c.State, c.Cancelled, r.ever || c.Cancelled
		case c.State == "":
			delete(r.steps, at)
		default:
			r.steps[at] = c
		}
		look(c)
	}
}

// enqueues reports whether a change of a step enqueued its job.
func enqueues(c history.FlowChange) bool {
	return c.Flow == "" && c.State == "enqueued"
}

func (r *flowLedger) String() string {
	return fmt.Sprintf("run %d of %s (%s)", r.run, r.Name, r.key)
}

func (r *flowLedger) step(at stepAt) string {
	name := fmt.Sprintf("step %d", at.n)
	if at.n < len(r.Steps) {
		name = r.Steps[at.n].Name
	}
	if at.item > 0 {
		name = fmt.Sprintf("%s, element %d", name, at.item)
	}
	return name + " of " + r.String()
}

// ending is how a step has ended, or how far it is.
type ending struct {
	begun  bool   // all that it waits for has come
	state  string // empty: it has not ended
	failed bool   // for steps that wait for failure
	good   bool   // for steps that wait for completion
	length int    // of the list that it made
}

// ended is how the job of a step has ended, before a time. Only a step that is no job of
// a list can be optional.
func (r *flowLedger) ended(job int64, before float64, optional bool) (e ending) {
	e.begun = true
	x, over := r.finished[job]
	if !over || x.FinishedAt > before {
		return e
	}
	e.state, e.good = x.State, x.State == "completed"
	switch {
	case x.Code == "SKIPPED":
		e.state, e.good = "skipped", true
	case !e.good:
		e.failed, e.good = true, optional
	case x.Kind == "list":
		e.length = len(listOf(x))
	}
	return e
}

// listElement is what a list has for an element.
type listElement struct {
	Token string `json:"token"`
}

func listOf(x history.Finished) (all []listElement) {
	_ = json.Unmarshal([]byte(x.Result), &all) // what is no list has no elements
	return all
}

// evaluate derives from the ends of jobs before a time how the steps have ended. The tables only
// say which job each step has, and which steps a cancellation ended before they had one.
func (r *flowLedger) evaluate(before float64) []ending {
	all := make([]ending, len(r.Steps))
	for n, s := range r.Steps {
		row := r.steps[stepAt{n, 0}]
		if r.ever && row.State == "cancelled" && row.Job == 0 {
			all[n] = ending{state: row.State, failed: true, good: s.Optional}
			continue
		}
		need, good, bad, blamed := len(s.After), 0, 0, false
		if s.Quorum > 0 && !s.Map {
			need = s.Quorum
		}
		for _, e := range s.After {
			switch b := all[e.Step]; {
			case b.state == "":
			case e.On == history.OnEnd, e.On == history.OnFailure && b.failed, e.On == history.OnSuccess && b.good && b.length >= e.Least:
				good++
			default:
				bad++
				blamed = blamed || b.failed
			}
		}
		switch {
		case good >= need && s.Map:
			all[n] = r.mapped(n, all[s.After[0].Step].length, before)
		case good >= need:
			all[n] = r.ended(row.Job, before, s.Optional)
		case bad > len(s.After)-need && (blamed || good+bad == len(s.After)):
			all[n] = ending{state: "skipped", failed: blamed}
		}
	}
	return all
}

// mapped says how a step with a list of a length has ended.
func (r *flowLedger) mapped(n, length int, before float64) ending {
	s := r.Steps[n]
	need, good, bad := cmp.Or(s.Quorum, length), 0, 0
	for item := 1; item <= length; item++ {
		e := r.ended(r.steps[stepAt{n, item}].Job, before, false)
		good += int(one(e.good))
		bad += int(one(e.state != "" && !e.good))
	}
	switch {
	case length < s.Quorum || bad > length-need:
		return ending{begun: true, state: "failed", failed: true, good: s.Optional}
	case good >= need:
		return ending{begun: true, state: "completed", good: true}
	}
	return ending{begun: true}
}

// leaf reports whether no step waits for the completion of the one at n.
func (r *flowLedger) leaf(n int) bool {
	return !slices.ContainsFunc(r.Steps, func(s history.FlowStep) bool {
		return slices.ContainsFunc(s.After, func(e history.FlowEdge) bool { return e.Step == n && e.On == history.OnSuccess })
	})
}

const forever = float64(1 << 60)

// stepsOnce finds steps whose job was enqueued again.
func (b *jobLedgers) stepsOnce() Finding {
	f := Finding{Name: "each step once", Rule: "a run of a flow enqueued the job of a step once at most, and once more at most after each retry"}
	type owned struct {
		run int64
		at  stepAt
	}
	owners := map[int64]owned{}
	for _, r := range b.flowLedgers() {
		last := map[stepAt]int{} // try
		r.read(func(c history.FlowChange) {
			if !enqueues(c) {
				return
			}
			at := stepAt{c.Step, c.Item}
			f.check(last[at] < r.tries, func() string {
				return fmt.Sprintf("%s was enqueued again, as job %d at %.3fs", r.step(at), c.Job, c.At)
			})
			last[at] = r.tries
			other, taken := owners[c.Job]
			f.check(!taken, func() string { return fmt.Sprintf("job %d is of %s, and of run %d", c.Job, r.step(at), other.run) })
			owners[c.Job] = owned{c.Run, at}
		})
	}
	enqueued := map[int64]bool{}
	for _, j := range b.StepJobs {
		owner, is := owners[j.ID]
		f.check(is && owner == owned{j.Run, stepAt{j.Step, j.Item}}, func() string {
			return fmt.Sprintf("%s was enqueued for step %d, element %d, of run %d, which does not know it", b.name(j.ID), j.Step, j.Item, j.Run)
		})
		enqueued[j.ID] = true
	}
	for job, owner := range owners {
		f.check(enqueued[job], func() string {
			return fmt.Sprintf("step %d, element %d, of run %d has job %d, which was not enqueued", owner.at.n, owner.at.item, owner.run, job)
		})
	}
	return f
}

// notBefore finds steps that began too early, or too late: after the end of their run.
func (b *jobLedgers) notBefore() Finding {
	f := Finding{Name: "not before", Rule: "no step was enqueued before what it waits for had ended as it must, nor after its run was cancelled; what a list's jobs do is in the list"}
	jobs := map[int64]history.StepJob{}
	for _, j := range b.StepJobs {
		jobs[j.ID] = j
	}
	for _, r := range b.flowLedgers() {
		r.read(func(c history.FlowChange) {
			if !enqueues(c) || c.Step >= len(r.Steps) {
				return
			}
			at, s := stepAt{c.Step, c.Item}, r.Steps[c.Step]
			f.check(!r.cancelled, func() string { return fmt.Sprintf("%s was enqueued at %.3fs, after a cancellation", r.step(at), c.At) })
			e := r.evaluate(c.At)[c.Step]
			f.check(e.begun, func() string { return fmt.Sprintf("%s was enqueued at %.3fs, before its time", r.step(at), c.At) })
			want := fmt.Sprintf("flow %s/%s", r.key, s.Name)
			if c.Item > 0 {
				want = ""
				if list := listOf(r.finished[r.steps[stepAt{s.After[0].Step, 0}].Job]); c.Item <= len(list) {
					want = list[c.Item-1].Token
				}
			}
			f.check(s.Map == (c.Item > 0) && jobs[c.Job].Token == want && jobs[c.Job].Kind == s.Kind && jobs[c.Job].Queue == s.Queue, func() string {
				return fmt.Sprintf("%s is job %d, %+v; it was to be %s %q of %s", r.step(at), c.Job, jobs[c.Job], s.Kind, want, s.Queue)
			})
		})
	}
	return f
}

// joins finds steps and runs that have ended otherwise than their jobs' ends mean.
func (b *jobLedgers) joins() Finding {
	f := Finding{Name: "joins", Rule: "steps and runs of flows have ended as the ends of their jobs mean, whichever came first"}
	for _, r := range b.flowLedgers() {
		r.read(func(history.FlowChange) {})
		if r.state == running || r.state == "" {
			continue
		}
		bad := 0
		for n, e := range r.evaluate(forever) {
			row := r.steps[stepAt{n, 0}]
			f.check(row.State == e.state && e.state != "", func() string {
				return fmt.Sprintf("%s is %q, its job and those before it say %q", r.step(stepAt{n, 0}), row.State, e.state)
			})
			bad += int(one(r.leaf(n) && e.failed && !e.good))
		}
		for at, row := range r.steps {
			if at.item == 0 {
				continue
			}
			e := r.ended(row.Job, forever, false)
			f.check(row.State == e.state && e.state != "", func() string {
				return fmt.Sprintf("%s is %q, its job says %q", r.step(at), row.State, e.state)
			})
		}
		want := map[bool]string{true: "cancelled", false: "failed"}[r.cancelled]
		if bad == 0 {
			want = "completed"
		}
		f.check(r.state == want, func() string { return fmt.Sprintf("%s has %s, by its steps it has %s", r, r.state, want) })
	}
	return f
}

// runsEnd finds runs of flows that do not come to their end, and those that nobody has
// started.
func (b *jobLedgers) runsEnd() Finding {
	f := Finding{Name: "runs end", Rule: "every run of a flow that was committed has ended, and no other exists"}
	ledgers := map[string]*flowLedger{}
	for _, r := range b.flowLedgers() {
		r.read(func(history.FlowChange) {})
		ledgers[r.key] = r
	}
	started := map[string]history.Enqueued{}
	for _, q := range b.Started {
		started[q.Token] = q
		r := ledgers[q.Token]
		f.check(r != nil || q.Outcome != history.EnqueueCommitted, func() string {
			return fmt.Sprintf("%s committed a run of %s, %s, and there is none", q.Who, q.Flow, q.Token)
		})
	}
	for key, r := range ledgers {
		q, known := started[key]
		f.check(known && q.Outcome != history.EnqueueRolledBack && q.Flow == r.Name, func() string {
			return fmt.Sprintf("%s is in the tables, and its enqueuer says %q", r, outcomeOf(q, known))
		})
		f.check(r.state != running && r.state != "", func() string { return fmt.Sprintf("%s is %q at rest", r, r.state) })
	}
	return f
}
